// This program links two shared objects and loads a third. All four contain the library. They must work
// together, and the process must end without an error.
#include <tilegrad/tilegrad.h>

#include <dlfcn.h>

#include <cstdio>
#include <string>

double program_step(float x);
void program_refuse();
double first_step(float x);
void first_refuse();
double second_step(float x);
void second_refuse();

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  void* loaded = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (!loaded) return std::fprintf(stderr, "%s\n", dlerror()), 1;
  const auto loaded_step = reinterpret_cast<double (*)(float)>(dlsym(loaded, "_Z11loaded_stepf"));
  if (!loaded_step) return 1;
  for (int i = 0; i < 2; ++i)
    for (double w : {program_step(1), first_step(1), second_step(1), loaded_step(1)})
      if (w != 0.5) return std::printf("a step leaves %g, expected 0.5\n", w), 1;
  for (const auto refuse : {program_refuse, first_refuse, second_refuse}) {
    try {
      refuse();
      return 1;
    } catch (const tg::Error& e) {
      std::printf("%s\n", e.what());
    }
  }
  return 0;
}
