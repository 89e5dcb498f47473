#include <tilegrad/io/models/pretrained.h>

#include <algorithm>

#include <tilegrad/core/base/error.h>
#include "io/models/gguf_writer.h"
#include "io/models/hf_writer.h"
#include "io/models/model_source.h"

namespace tg::nn {

namespace {

constexpr const char* folder_key = "folder/";

// Saves a Hugging Face folder or a GGUF file.
template <class Writer>
void save(const std::string& path, io::ModelSource source, const text::Tokenizer* tokenizer,
          const auto& options) {
  if (tokenizer != nullptr) source.tokenizer = {std::shared_ptr<void>(), tokenizer};
  Writer(source, options).write(path);
}

// Returns the configuration for a shorter context; 0 means the full context. Parameters always have the
// shapes for the full context. If shapes depend on the context (GPT's learned positions), the configuration
// is unchanged. Otherwise it gets the shorter context, because rotary positions may depend on the context.
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

void check_context(const std::string& path, const ModelConfig& config, std::int64_t context) {
  if (context < 0 || context > config.context)
    throw ShapeError("[from_pretrained] " + path + ": expected a context up to " +
                     std::to_string(config.context) + ", got " + std::to_string(context));
}

// Returns a source for a loaded model, with its full context.
io::ModelSource source_of_pretrained(const Pretrained& model) {
  io::ModelSource source =
      io::source_of(model.model.parameters(), made_for(model.info.config, model.model.context()));
  source.config = model.info.config;
  source.from = model.info.folder, source.files = model.info.files;
  return source;
}

}  // namespace

}  // namespace tg::nn

namespace tg::io {

nn::PretrainedInfo pretrained_info(const ModelSource& source) {
  const HfConfig c = config_in(source.files, source.from);
  std::uint64_t bytes = 0;
  source.config.each_parameter([&](const std::string& name, const Shape& shape) {
    bytes += static_cast<std::uint64_t>(numel(shape)) * size_of(source.weights->dtype(name));
  });
  return {.folder = source.from,
          .family = c.family,
          .config = source.config,
          .dtypes = source.dtypes(),
          .bytes = bytes,
          .dropped = source.dropped,
          .end_tokens = c.end_tokens,
          .start_token = c.start_token,
          .padding_token = c.padding_token,
          .files = source.files};
}

nn::Pretrained from_source(const ModelSource& source, Device device, const nn::PretrainedOptions& options) {
  nn::check_context(source.from, source.config, options.context);
  nn::Params params = nn::Params::unset(options.dtype, device);
  nn::Pretrained made{pretrained_info(source), nn::model_of(params, source.config, options.context)};
  load(source, params.all());
  return made;
}

}  // namespace tg::io

namespace tg::nn {

std::string PretrainedInfo::text() const {
  return family + ", " + std::to_string(config.parameters()) + " parameters in " + io::names_of(dtypes) +
         ", " + std::to_string(bytes >> 20) + " MiB" +
         (dropped.empty() ? "" : "; not needed: " + dropped[0]) +
         (dropped.size() > 1 ? " and " + std::to_string(dropped.size() - 1) + " more" : "");
}

PretrainedInfo pretrained_info(const std::string& folder) {
  return io::pretrained_info(io::source_at(folder, false));
}

void check_tokenizer(const PretrainedInfo& info, const text::Tokenizer& tokenizer, const std::string& where) {
  const std::int64_t tokens = tokenizer.size();
  if (tokens > info.config.vocabulary)
    throw FormatError(where + ": has " + std::to_string(tokens) + " tokens, the model " +
                      std::to_string(info.config.vocabulary));
  const std::vector<std::int64_t>& ends = info.end_tokens;
  if (!ends.empty() && std::ranges::all_of(ends, [&](std::int64_t id) { return id >= tokens; }))
    throw FormatError(where + ": has " + std::to_string(tokens) + " tokens, the model's sequences end with " +
                      std::to_string(ends[0]) + ", its eos_token_id");
}

Pretrained from_pretrained(const std::string& path, Device device, const PretrainedOptions& options) {
  if (!is_float(options.dtype))
    throw DTypeError("[from_pretrained] expected a floating dtype, got " +
                     std::string(name_of(options.dtype)));
  return io::from_source(io::source_at(path, false), device, options);
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
  save<io::HfWriter>(folder, source_of_pretrained(model), tokenizer, options);
}

void save_pretrained(const std::string& folder, const Model& model, const ModelConfig& config,
                     const text::Tokenizer* tokenizer, const SaveOptions& options) {
  save<io::HfWriter>(folder, io::source_of(model.parameters(), config), tokenizer, options);
}

void save_gguf(const std::string& path, const Pretrained& model, const text::Tokenizer* tokenizer,
               const GgufOptions& options) {
  save<io::GgufWriter>(path, source_of_pretrained(model), tokenizer, options);
}

void save_gguf(const std::string& path, const Model& model, const ModelConfig& config,
               const text::Tokenizer* tokenizer, const GgufOptions& options) {
  save<io::GgufWriter>(path, io::source_of(model.parameters(), config), tokenizer, options);
}

}  // namespace tg::nn
