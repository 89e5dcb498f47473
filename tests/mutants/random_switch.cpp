// Reads TG_MUTANT, which contains the comma-separated numbers of the mutants that are on. TG_MUTANT_COVERAGE
// names a file of max_mutants bytes, which all processes of a test map. If a mutant is reached, its byte is
// set. The record survives even if the process is killed.
#include "random_switch.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

namespace tg {

unsigned char mutant_states[max_mutants];

namespace {

constexpr unsigned char is_on = 1, is_counted = 2;
unsigned char* reached = nullptr;

// Runs before any other static initializer, because other initializers may contain mutants.
[[gnu::constructor(101)]] void read_mutants() {
  if (const char* path = std::getenv("TG_MUTANT_COVERAGE")) {
    const int file = open(path, O_RDWR | O_CLOEXEC);
    void* map =
        file < 0 ? MAP_FAILED : mmap(nullptr, max_mutants, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (map == MAP_FAILED) _exit(99);
    close(file);
    reached = static_cast<unsigned char*>(map);
    std::memset(mutant_states, is_counted, max_mutants);
  }
  if (const char* next = std::getenv("TG_MUTANT")) {
    while (*next) {
      char* end = nullptr;
      const long number = std::strtol(next, &end, 10);
      if (end == next || number < 0 || number >= max_mutants) _exit(99);
      mutant_states[number] = is_on;
      next = *end == ',' ? end + 1 : end;
    }
  }
}

}  // namespace

bool ask_mutant(int number) {
  if (mutant_states[number] == is_counted) {
    reached[number] = 1;
    mutant_states[number] = 0;
    return false;
  }
  return mutant_states[number] == is_on;
}

bool ask_device_mutant(int number) {
  return mutant_states[number] != 0 && ask_mutant(number);
}

void count_mutants() {
  if (!reached) return;
  std::memset(reached, 0, max_mutants);
  std::memset(mutant_states, is_counted, max_mutants);
}

const unsigned char* counted_mutants() {
  return reached;
}

}  // namespace tg
