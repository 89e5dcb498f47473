// A checkpoint: a directory of safetensors files, with a manifest that lists their sizes and XXH3-128
// checksums. Its content does not depend on the device.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include <tilegrad/core/graph/parameter.h>
#include <tilegrad/io/checkpoints/manifest.h>
#include <tilegrad/io/files/safetensors.h>

namespace tg::io {

// One file of a checkpoint.
struct CheckpointFile {
  std::string name;                   // such as "model.safetensors"
  std::vector<Parameter> parameters;  // tensors of the file; each is stored under its name
  Metadata metadata = {};             // of the safetensors file
};

// Dtypes that a file's tensors may have when parameters are restored.
enum class Dtypes {
  same,    // only the parameter's dtype; for resuming training
  convert  // any floating dtype for a floating parameter, such as f32 values for a bf16 parameter
};

// Creates the directory, which must not exist, and writes every file and the manifest. All of it is on disk
// when the function returns. Until the checkpoint is complete, a manifest without files marks the directory
// as ours. In the following cases, throws Error, and the caller removes the directory:
// - two parameters in a file have the same name, or a parameter contains a NaN or an infinity;
// - the step is negative;
// - there are no files, or a file name contains a folder or begins with a dot;
// - writing fails.
void write_checkpoint(const std::string& directory, std::int64_t step, std::int64_t best_step,
                      std::span<const CheckpointFile> files);

// A checkpoint opened for reading. Copies share the open files.
class Checkpoint {
 public:
  // Opens the checkpoint in `path`, a directory with a manifest. If `path` is a run's directory
  // (io/checkpoints/checkpoint_store.h), opens its last checkpoint. The files stay open as long as the object
  // exists. All reads therefore see the same checkpoint, even if the run replaces it in the meantime. Throws
  // Error if there is no checkpoint, and FormatError for an invalid manifest.
  explicit Checkpoint(const std::string& path);

  // The directory with the manifest.
  const std::string& directory() const { return directory_; }
  // The number of training steps before the checkpoint was saved.
  std::int64_t step() const { return manifest_.step; }
  // The step of the run's best checkpoint so far; 0 before the first validation.
  std::int64_t best_step() const { return manifest_.best_step; }

  // Reads one file. Throws FormatError that names the file if it is not in the manifest, is missing, differs
  // from the manifest in size or checksum, or violates the format.
  SafeTensors load(const std::string& name) const;

  // Writes the files' values into the parameters. Names, shapes and dtypes must match. If a file has settings
  // (Parameter::settings), they must match too. Otherwise throws FormatError, and no parameter has changed.
  // With Dtypes::convert, values are rounded to the parameter's dtype (nearest, ties to even). A value that
  // is too large for that dtype throws FormatError.
  void restore(std::span<const CheckpointFile> files, Dtypes dtypes = Dtypes::same) const;
  // Returns the values that restore() would write: for each file, one Array per parameter, in order. Throws
  // as restore() does.
  std::vector<std::vector<Array>> values(std::span<const CheckpointFile> files,
                                         Dtypes dtypes = Dtypes::same) const;

 private:
  struct Files;
  bool open(const std::string& directory);

  std::string directory_;
  Manifest manifest_;
  std::shared_ptr<const Files> files_;
};

// If a parameter contains a NaN or an infinity, throws FormatError with the name of the first such parameter.
// The message begins with `where`.
void check_finite(const std::vector<Parameter>& parameters, const std::string& where);
// Does the same for `values`, which has one Array for each parameter.
void check_finite(const std::vector<Parameter>& parameters, std::span<const Array> values,
                  const std::string& where);

// Saves parameters as one safetensors file. If saving fails, an existing file stays unchanged; otherwise it
// is replaced. The parameters' settings are added to the metadata as "setting.<name>". Throws Error if two
// parameters have the same name, or if a parameter contains a NaN or an infinity.
void save_parameters(const std::string& path, const std::vector<Parameter>& parameters,
                     const Metadata& metadata = {});

// Writes a file's values into the parameters and returns the file's metadata. Names, shapes, dtypes and
// settings must match as for Checkpoint::restore(). Otherwise throws FormatError, and no parameter has
// changed. Settings are not compared if the file has none.
Metadata load_parameters(const std::string& path, const std::vector<Parameter>& parameters,
                         Dtypes dtypes = Dtypes::same);

}  // namespace tg::io
