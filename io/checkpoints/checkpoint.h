// A checkpoint: a directory of safetensors files with a manifest of their sizes and XXH3-128 checksums.
// Nothing in it depends on the device.
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
  std::string name;                   // "model.safetensors"
  std::vector<Parameter> parameters;  // tensors of the file, by their names
  Metadata metadata = {};
};

// Which dtypes a file's tensors may have when parameters are restored.
enum class Dtypes {
  same,    // the parameters' own; what training continues from
  convert  // any floating one for floating parameters: f32 weights into bf16 parameters, or the other way
           // round
};

// Creates the directory, which must not exist, and writes every file and the manifest. All of it is on the
// disk when this returns. Throws Error, also for two parameters of one name in a file, for a parameter that
// is not finite, for a negative step, and for no files or a file whose name is not plain; then the caller
// removes what was written. A manifest without files marks the directory until it is complete.
void write_checkpoint(const std::string& directory, std::int64_t step, std::int64_t best_step,
                      std::span<const CheckpointFile> files);

class Checkpoint {
 public:
  // A directory with a manifest, or a run's directory (io/checkpoints/checkpoint_store.h), whose last
  // checkpoint it opens. Throws Error if there is none, FormatError for an invalid manifest. Its files stay
  // open as long as it exists: what it reads is one checkpoint, even if the run replaces it meanwhile.
  explicit Checkpoint(const std::string& path);

  const std::string& directory() const { return directory_; }
  std::int64_t step() const { return manifest_.step; }
  std::int64_t best_step() const { return manifest_.best_step; }

  // Throws FormatError with the name of the file if it is missing from the manifest or the directory, differs
  // in size or checksum from the manifest, or breaks a rule of the format.
  SafeTensors load(const std::string& name) const;

  // Writes the files' values into the parameters. Every name, shape and dtype must be the same on both sides,
  // and every setting of the parameters that a file has (Parameter::settings), else FormatError, and no
  // parameter of any file has changed. With Dtypes::convert, other floating values are rounded to the nearest
  // of the parameter's dtype, of two the even one; FormatError for a number that is too large for it.
  void restore(std::span<const CheckpointFile> files, Dtypes dtypes = Dtypes::same) const;
  // What restore() would write: for each file the values of its parameters, in their order.
  std::vector<std::vector<Array>> values(std::span<const CheckpointFile> files,
                                         Dtypes dtypes = Dtypes::same) const;

 private:
  struct Files;
  bool open(const std::string& directory);

  std::string directory_;
  Manifest manifest_;
  std::shared_ptr<const Files> files_;
};

// Throws FormatError, beginning with `where`, with the name of the first parameter that has a NaN or an
// infinity; the same for `values` of parameters.
void check_finite(const std::vector<Parameter>& parameters, const std::string& where);
void check_finite(const std::vector<Parameter>& parameters, std::span<const Array> values,
                  const std::string& where);

// Parameters as one safetensors file by itself. Replaces the file as a whole or leaves it untouched. Throws
// Error for two parameters of one name, and for one that is not finite. The metadata gets the parameters'
// settings, as "setting.<name>".
void save_parameters(const std::string& path, const std::vector<Parameter>& parameters,
                     const Metadata& metadata = {});

// Writes the file's values into the parameters and returns its metadata. Names, shapes, dtypes (unless they
// are converted, as by Checkpoint::restore) and settings must be the same on both sides, else FormatError,
// and no parameter has changed. A file without settings has none to compare.
Metadata load_parameters(const std::string& path, const std::vector<Parameter>& parameters,
                         Dtypes dtypes = Dtypes::same);

}  // namespace tg::io
