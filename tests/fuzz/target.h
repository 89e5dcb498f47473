// The parts of a fuzz target: fuzz_one, which each target defines, and a check that stops the process.
// With libFuzzer the target is run on bytes that it makes up; in the test suite tests/fuzz/replay.cpp runs it
// on the corpus.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string_view>

void fuzz_one(std::string_view bytes);

inline void fuzz_expect(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s\n", what);
  std::abort();
}
