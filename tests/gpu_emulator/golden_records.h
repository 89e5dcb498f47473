// Compares the recorder's lines (recorder.h) with a golden file in this folder. The file is FILE.txt, or
// FILE_hopper.txt on an emulated Hopper. If TG_SHOW_LAUNCHES=1 is set, the lines are printed.
#pragma once

#include <cstdlib>
#include <iostream>
#include <string>

#include "tests/gpu_emulator/recorder.h"
#include "tests/support/golden.h"

namespace tg::testing {

// Returns all lines that were recorded since the last call.
inline std::string recorded() {
  std::string text;
  for (const std::string& line : emulator::take_recorded()) text += line + "\n";
  return text;
}

class GoldenRecords {
 public:
  // `of_gpu` states whether the records depend on the emulated GPU.
  explicit GoldenRecords(const std::string& file, bool of_gpu = true) : path_(GOLDEN_FILES + file) {
    const char* gpu = of_gpu ? std::getenv("TG_EMULATED_GPU") : nullptr;
    if (gpu) path_ += "_" + std::string(gpu);
  }

  void add(const std::string& what, const std::string& record) {
    Checksum sum;
    sum.add(record);
    now_[what] = sum.text();
    if (std::getenv("TG_SHOW_LAUNCHES")) std::cout << "== " << what << "\n" << record;
  }
  void expect_recorded() const { expect_golden(path_ + ".txt", now_, false); }

 private:
  std::string path_;
  GoldenLines now_;
};

}  // namespace tg::testing
