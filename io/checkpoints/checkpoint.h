// A checkpoint: a directory of safetensors files with a manifest of their sizes and XXH3-128 checksums.
// Nothing in it depends on the device.
#pragma once

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

// Makes the directory, which must not exist, and writes every file and the manifest; all of it is on the disk
// when this returns. Throws Error; what is there by then is the caller's to remove.
void write_checkpoint(const std::string& directory, std::int64_t step, std::int64_t best_step,
                      std::span<const CheckpointFile> files);

class Checkpoint {
 public:
  // A directory with a manifest, or a run's directory (io/checkpoint_store.h), of which it takes the last.
  // Throws Error when there is none, FormatError for a manifest that is not one.
  explicit Checkpoint(const std::string& path);

  const std::string& directory() const { return directory_; }
  std::int64_t step() const { return manifest_.step; }
  std::int64_t best_step() const { return manifest_.best_step; }

  // Throws FormatError naming the file when it is missing from the manifest or the directory, has another
  // size or sum than the manifest says, or breaks a rule of the format.
  SafeTensors load(const std::string& name) const;

  // Writes the files' values into the parameters. Every name, shape and dtype must be the same on both sides,
  // else FormatError, and no parameter of any file has changed.
  void restore(std::span<const CheckpointFile> files) const;

 private:
  std::string directory_;
  Manifest manifest_;
};

// Throws FormatError, beginning with `where`, naming the first parameter with a NaN or an infinity in it.
void want_finite(const std::vector<Parameter>& parameters, const std::string& where);

// Parameters as one safetensors file by itself. Replaces the file as a whole or leaves it untouched.
void save_parameters(const std::string& path, const std::vector<Parameter>& parameters,
                     const Metadata& metadata = {});

// Writes the file's values into the parameters and returns its metadata. Names, shapes and dtypes must be the
// same on both sides, else FormatError, and no parameter has changed.
Metadata load_parameters(const std::string& path, const std::vector<Parameter>& parameters);

}  // namespace tg::io
