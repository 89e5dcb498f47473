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
// as ours. Throws Error, after which the caller removes the directory, for:
// - two parameters of one name in a file, or a parameter with a NaN or an infinity;
// - a negative step;
// - no files, or a file name that contains a folder or begins with a dot;
// - a failed write.
void write_checkpoint(const std::string& directory, std::int64_t step, std::int64_t best_step,
                      std::span<const CheckpointFile> files);

// A checkpoint opened for reading. Copies share the open files.
class Checkpoint {
 public:
  // `path` is a directory with a manifest, or a run's directory (io/checkpoints/checkpoint_store.h), whose
  // last checkpoint is opened. Files stay open as long as the object exists. All reads therefore see the same
  // checkpoint, even if the run replaces it in the meantime. Throws Error if there is no checkpoint,
  // FormatError for an invalid manifest.
  explicit Checkpoint(const std::string& path);

  // The directory with the manifest.
  const std::string& directory() const { return directory_; }
  // The number of training steps before the checkpoint was saved.
  std::int64_t step() const { return manifest_.step; }
  // The step of the run's best checkpoint so far; 0 before the first validation.
  std::int64_t best_step() const { return manifest_.best_step; }

  // Reads one file. Throws FormatError that names it if the manifest does not list it, it is missing, its
  // size or checksum differs from the manifest, or it violates the format.
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

// Throws FormatError, beginning with `where`, that names the first parameter with a NaN or an infinity.
void check_finite(const std::vector<Parameter>& parameters, const std::string& where);
// As above, for `values` of the parameters, one Array per parameter.
void check_finite(const std::vector<Parameter>& parameters, std::span<const Array> values,
                  const std::string& where);

// Saves parameters as one safetensors file, which replaces an existing file or leaves it unchanged. The
// parameters' settings are added to the metadata as "setting.<name>". Throws Error for two parameters of one
// name, and for one with a NaN or an infinity.
void save_parameters(const std::string& path, const std::vector<Parameter>& parameters,
                     const Metadata& metadata = {});

// Writes a file's values into the parameters and returns the file's metadata. Names, shapes, dtypes and
// settings must match as for Checkpoint::restore(). Otherwise throws FormatError, and no parameter has
// changed. Settings are not compared if the file has none.
Metadata load_parameters(const std::string& path, const std::vector<Parameter>& parameters,
                         Dtypes dtypes = Dtypes::same);

}  // namespace tg::io
