#include <tilegrad/io/interop/pretrained.h>

#include <algorithm>

#include <tilegrad/core/base/error.h>
#include "io/interop/hf_folder.h"
#include "io/interop/hf_writer.h"

namespace tg::nn {

namespace {

PretrainedInfo info_of(const io::HfFolder& folder) {
  const io::HfConfig& c = folder.config();
  return {.folder = folder.path(),
          .family = c.family,
          .config = c.model,
          .dtypes = folder.dtypes(),
          .bytes = folder.bytes(),
          .dropped = folder.dropped(),
          .end_tokens = c.end_tokens,
          .start_token = c.start_token,
          .padding_token = c.padding_token,
          .files = folder.small_files()};
}

constexpr const char* folder_key = "folder/";

void save(const std::string& folder, io::ModelSource source, const text::Tokenizer* tokenizer,
          const SaveOptions& options) {
  if (tokenizer != nullptr) source.tokenizer = {std::shared_ptr<void>(), tokenizer};
  io::HfWriter(source, options).write(folder);
}

// `context`: 0: the whole. Parameters are those of the whole: where they do not depend on it (GPT's learned
// positions do), the model is made for the shorter one, which its rotary positions may depend on.
ModelConfig made_for(const ModelConfig& config, std::int64_t context) {
  ModelConfig shorter = config;
  if (context > 0) shorter.context = context;
  return shorter.parameters() == config.parameters() ? shorter : config;
}

Model model_of(Params& params, const ModelConfig& config, std::int64_t context) {
  ModelParts parts = config.architecture.make(params, made_for(config, context));
  if (context > 0) parts.context = context;
  return Model(params, std::move(parts));
}

}  // namespace

std::string PretrainedInfo::text() const {
  std::string types;
  for (const DType t : dtypes) types += (types.empty() ? "" : " and ") + std::string(name_of(t));
  return family + ", " + std::to_string(config.parameters()) + " parameters in " + types + ", " +
         std::to_string(bytes >> 20) + " MiB" + (dropped.empty() ? "" : "; not needed: " + dropped[0]) +
         (dropped.size() > 1 ? " and " + std::to_string(dropped.size() - 1) + " more" : "");
}

PretrainedInfo pretrained_info(const std::string& folder) {
  return info_of(io::HfFolder(folder));
}

void check_tokenizer(const PretrainedInfo& info, const text::Tokenizer& tokenizer, const std::string& where) {
  const std::int64_t tokens = tokenizer.size();
  if (tokens > info.config.vocabulary)
    throw FormatError(where + ": has " + std::to_string(tokens) + " tokens, the model " +
                      std::to_string(info.config.vocabulary));
  const std::vector<std::int64_t>& ends = info.end_tokens;
  if (!ends.empty() && std::all_of(ends.begin(), ends.end(), [&](std::int64_t id) { return id >= tokens; }))
    throw FormatError(where + ": has " + std::to_string(tokens) + " tokens, the model's texts end with " +
                      std::to_string(ends[0]) + ", its eos_token_id");
}

Pretrained from_pretrained(const std::string& path, Device device, const PretrainedOptions& options) {
  const io::HfFolder folder(path);
  if (!is_float(options.dtype))
    throw DTypeError("[from_pretrained] expected a floating dtype, got " +
                     std::string(name_of(options.dtype)));
  const ModelConfig& config = folder.config().model;
  if (options.context < 0 || options.context > config.context)
    throw ShapeError("[from_pretrained] " + path + ": expected a context up to " +
                     std::to_string(config.context) + ", got " + std::to_string(options.context));
  Params params = Params::unset(options.dtype, device);
  Pretrained made{info_of(folder), model_of(params, config, options.context)};
  folder.load(params.all());
  return made;
}

io::Metadata folder_metadata(const FolderFiles& files) {
  io::Metadata metadata;
  for (const auto& [name, text] : files) metadata[folder_key + name] = text;
  return metadata;
}

FolderFiles folder_files(const io::Metadata& metadata) {
  FolderFiles files;
  for (const char* name : folder_file_names)
    if (const auto found = metadata.find(folder_key + std::string(name)); found != metadata.end())
      files[name] = found->second;
  return files;
}

void save_pretrained(const std::string& folder, const Pretrained& model, const text::Tokenizer* tokenizer,
                     const SaveOptions& options) {
  const ModelConfig& config = model.info.config;
  io::ModelSource source = io::source_of(model.model.parameters(), made_for(config, model.model.context()));
  source.config = config;
  source.from = model.info.folder, source.files = model.info.files;
  save(folder, std::move(source), tokenizer, options);
}

void save_pretrained(const std::string& folder, const Model& model, const ModelConfig& config,
                     const text::Tokenizer* tokenizer, const SaveOptions& options) {
  save(folder, io::source_of(model.parameters(), config), tokenizer, options);
}

}  // namespace tg::nn
