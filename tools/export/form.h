// A form in which export writes a model: a row of the table in tools/export.cpp.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "io/interop/adapter_source.h"
#include "io/interop/model_source.h"
#include "tools/train_report.h"

namespace tg {

struct ExportOptions {
  std::string out;    // the folder or file to write
  std::string dtype;  // of the weights; empty: as they are
  // To be called with the bytes that are written, of how many: shows them, and throws when the user ends it.
  std::function<void(std::uint64_t written, std::uint64_t all)> progress;
};

// What is exported: a model, or an adapter alone.
struct ExportSource {
  io::ModelSource model = {};
  std::optional<io::SavedAdapter> adapter = {};
};

struct Form {
  const char* name;                 // of --to
  const char* what;                 // for --help
  std::vector<std::string> dtypes;  // that --dtype can name
  bool is_adapter;                  // of the adapter alone, of a run of train --lora
  // Prints rows about what it writes, writes it, and returns the lines of a program that loads it. Throws
  // Error in one line; then nothing is left behind.
  std::string (*write)(ExportSource& source, const ExportOptions& options);
};

std::string export_hf(ExportSource& source, const ExportOptions& options);
std::string export_gguf(ExportSource& source, const ExportOptions& options);
std::string export_peft(ExportSource& source, const ExportOptions& options);

// "text" in Python.
std::string python_string(const std::string& text);

}  // namespace tg
