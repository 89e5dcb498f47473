// Calls functions of io/ for text, checkpoints and plots. The fuzz targets (tests/fuzz) test damaged files.
#include <filesystem>

#include <tilegrad/io/checkpoints/checkpoint_store.h>
#include <tilegrad/io/files/file.h>
#include <tilegrad/io/files/json.h>
#include <tilegrad/io/files/mapped_file.h>
#include <tilegrad/io/models/peft.h>
#include <tilegrad/io/models/pretrained.h>
#include <tilegrad/io/plots/heat_map.h>
#include <tilegrad/io/plots/png_plot.h>
#include <tilegrad/io/text/bpe.h>
#include <tilegrad/io/text/hf_tokenizer.h>
#include <tilegrad/io/text/text.h>
#include <tilegrad/io/text/text_stream.h>
#include <tilegrad/io/text/token_file.h>
#include <tilegrad/nn/models/llama.h>
#include "tests/hostile/files.h"

namespace tg::hostile {

using I = std::int64_t;

std::string path(World& w) {
  return w.hostile() ? w.one_of<std::string>(
                           {"", "/", ".", "/dev/full", "/dev/null", "no/file", std::string(300, 'x')})
                     : w.one_of<std::string>({"a", "b"});
}

std::int64_t count(World& w, std::uint64_t n, std::int64_t least) {
  return w.hostile() ? Draw<I>::of(w) : least + static_cast<I>(w.below(n));
}

std::vector<std::int32_t> ids(World& w) {
  std::vector<std::int32_t> all(w.hostile() ? w.below(40) : 39);
  for (std::int32_t& id : all) id = static_cast<std::int32_t>(w.hostile() ? Draw<I>::of(w) : count(w, 2));
  return all;
}

namespace {

plot::Plot drawn_plot(World& w) {
  plot::Plot p{.title = Draw<std::string>::of(w), .log_x = w.chance(0.3), .log_y = w.chance(0.3)};
  for (std::uint64_t n = w.below(3); n > 0; --n)
    p.series.push_back(
        {Draw<std::string>::of(w), Draw<std::vector<double>>::of(w), Draw<std::vector<double>>::of(w)});
  if (w.chance(0.3)) p.boxes.push_back({Draw<double>::of(w), Draw<double>::of(w), Draw<double>::of(w), 1});
  p.width = w.hostile() ? Draw<int>::of(w) : 320, p.height = w.hostile() ? Draw<int>::of(w) : 240;
  return p;
}

// Calls f, which loads or reads files that were just written. The call must succeed.
template <class F>
auto readable(const F& f) {
  try {
    return f();
  } catch (const Error& e) {
    throw std::logic_error(std::string("a saved file cannot be loaded: ") + e.what());
  }
}

void checkpoints(World& w) {
  const std::string directory = w.chance(0.5) ? "run" : "./" + path(w) + ".run";
  io::CheckpointStore store(directory);
  const std::vector<io::CheckpointFile> files{
      {w.hostile() ? Draw<std::string>::of(w) : "model", Draw<std::vector<Parameter>>::of(w)}};
  store.save(count(w, 9), count(w, 9), files);
  if (const std::string name = w.chance(0.5) ? "rows" : Draw<std::string>::of(w); w.chance(0.5))
    store.claim(name);
  else
    store.require_own(name);
  store.require_free_steps(Draw<I>::of(w), Draw<I>::of(w));
  readable([&] {
    const io::Checkpoint last(directory);
    last.load(files[0].name), last.values(files);
    return (void)last.step(), last.best_step();
  });
  const io::Checkpoint last(directory + "/last");
  last.restore(files, w.one_of({io::Dtypes::same, io::Dtypes::convert}));
  if (w.chance(0.3)) store.clear();
  if (store.has_checkpoint()) io::Checkpoint(store.directory()).load(Draw<std::string>::of(w));
  last.load(Draw<std::string>::of(w));
}

// Writes, changes and reads an adapter of a model.
void adapter(World& w, nn::Pretrained model) {
  std::filesystem::remove_all("adapter");
  if (w.chance(0.9))
    nn::add_lora(model,
                 {.rank = count(w, 3, 1), .targets = {w.one_of<std::string>({"q_proj", "down_proj", "x"})}});
  nn::SaveAdapterOptions options;
  if (w.chance(0.3)) options.dtype = w.one_of({f32, bf16, f16, i64});
  nn::save_adapter(w.chance(0.9) ? "adapter" : path(w), model, options);
  if (w.chance(0.8)) nn::remove_lora(model.model);
  if (w.chance(0.5)) {
    std::string config = io::read_file("adapter/adapter_config.json", "hostile");
    const std::string to = w.one_of<std::string>({"null", "7", "true", "[]", "{\"q\":1e9}", "\"a\"", "-1"});
    const std::size_t colon = config.find(": ", w.below(config.size()));
    if (colon != std::string::npos) config.replace(colon + 2, config.find('\n', colon) - colon - 3, to);
    io::replace_file("adapter/adapter_config.json", std::vector<std::string_view>{config}, "hostile");
  }
  nn::load_adapter(model, w.chance(0.9) ? "adapter" : path(w));
}

// Writes the folder of a small Llama. Sometimes its config.json contradicts its weights.
void pretrained(World& w) {
  std::filesystem::create_directories("pretrained");
  const auto number = [&](I n) { return std::to_string(w.chance(0.05) ? Draw<I>::of(w) : n); };
  const std::string family = w.chance(0.9) ? "llama" : Draw<std::string>::of(w);
  const std::string config =
      "{\"model_type\": " + io::json_string(family) + ", \"vocab_size\": " + number(5) +
      ", \"max_position_embeddings\": " + number(4) + ", \"num_hidden_layers\": " + number(1) +
      ", \"num_attention_heads\": " + number(2) + ", \"hidden_size\": " + number(4) +
      ", \"intermediate_size\": " + number(16) + "}";
  io::replace_file("pretrained/config.json", std::vector<std::string_view>{config}, "hostile");
  nn::Params params(1);
  const nn::ModelConfig c{.architecture = nn::Llama{},
                          .vocabulary = 5,
                          .context = 4,
                          .layers = 1,
                          .heads = 2,
                          .width = 4,
                          .tied_head = w.chance(0.1)};
  const nn::Model written(params, c);
  io::save_parameters("pretrained/model.safetensors", written.parameters());
  const nn::Pretrained model = nn::from_pretrained(
      "pretrained", w.chance(0.8) ? Device::cpu() : Draw<Device>::of(w),
      {.dtype = w.one_of({f32, bf16, f64, i32}), .context = w.chance(0.5) ? 0 : Draw<I>::of(w)});
  const nn::PretrainedInfo info = nn::pretrained_info("pretrained");
  w.trace += info.text() + "\n";
  if (w.chance(0.2)) nn::check_tokenizer(info, text::ByteTokenizer(), "hostile");
  w.keep(nn::LanguageModel(model).logits(w.graph.input("tokens", {1, 2}, i32)));
  if (nn::folder_files(nn::folder_metadata(model.info.files)) != model.info.files)
    throw std::logic_error("files of a folder are missing in the metadata");
  if (w.chance(0.4)) return adapter(w, model);
  std::filesystem::remove_all("saved");
  nn::SaveOptions options{.shard_bytes = w.below(2000)};
  if (w.chance(0.5)) options.dtype = w.one_of({f32, bf16, f16, i64});
  const text::NumberTokenizer tokenizer(w.below(8));
  const std::string folder = w.one_of<std::string>({"saved", "saved/", "pretrained", "", "no/folder"});
  if (w.chance(0.5))
    nn::save_pretrained(folder, model, &tokenizer, options);
  else
    nn::save_pretrained(folder, model.model, w.chance(0.8) ? model.info.config : c, nullptr, options);
  if (w.chance(0.3)) {
    const std::string file = w.one_of<std::string>({"saved.gguf", "pretrained", "", "no/file"});
    const nn::GgufOptions gguf{.dtype = w.one_of<std::string>({"", "f32", "f16", "bf16", "q8_0", "q4_0"})};
    std::filesystem::remove_all("saved.gguf");
    if (w.chance(0.5))
      nn::save_gguf(file, model, &tokenizer, gguf);
    else
      nn::save_gguf(file, model.model, w.chance(0.8) ? model.info.config : c, nullptr, gguf);
    w.trace += nn::from_pretrained(file).info.text() + "\n";
    return;
  }
  nn::from_pretrained(folder);
}

// Returns a tokenizer.json that is valid or nearly valid.
std::string tokenizer_file(World& w) {
  const std::string merge =
      w.one_of<std::string>({R"(["a","b"])", R"("a b")", R"(["ab","ab"])", R"(["a"])", "7", ""});
  const std::string id = w.one_of<std::string>({"2", "3", "-1", "2147483647", "99999999999"});
  const std::string pre =
      w.one_of<std::string>({"null", R"({"type":"ByteLevel","add_prefix_space":true})",
                             R"({"type":"Metaspace","replacement":"\u2581"})",
                             R"({"type":"Sequence","pretokenizers":[]})", R"({"type":"Split"})"});
  const std::string decoder =
      w.one_of<std::string>({R"({"type":"ByteLevel"})",
                             R"({"type":"Replace","pattern":{"String":"\u2581"},"content":" "})", "null"});
  return R"({"added_tokens":[],"normalizer":null,"pre_tokenizer":)" + pre +
         R"(,"post_processor":null,"decoder":)" + decoder +
         R"(,"model":{"type":"BPE","unk_token":"a","vocab":{"a":0,"b":1,"ab":)" + id + R"(},"merges":[)" +
         merge + "]}}";
}

std::unique_ptr<text::Tokenizer> tokenizer(World& w, const std::string& text) {
  switch (w.below(7)) {
    case 6:
      return std::make_unique<text::HfTokenizer>(w.chance(0.9) ? tokenizer_file(w) : text, "hostile");
    case 0:
      return std::make_unique<text::CharVocab>(std::string_view(text));
    case 1: {
      std::vector<char32_t> characters;
      for (std::uint64_t n = w.below(4); n > 0; --n)
        characters.push_back(w.hostile() ? w.one_of<char32_t>({0xd800, 0x10ffff, 0x110000, ~char32_t{0}})
                                         : static_cast<char32_t>(w.below(128)));
      return std::make_unique<text::CharVocab>(characters);
    }
    case 2:
      return std::make_unique<text::ByteTokenizer>();
    case 3:
      return std::make_unique<text::NumberTokenizer>(Draw<I>::of(w));
    case 4: {
      std::vector<text::Bpe::Merge> merges;
      for (std::uint64_t n = w.below(4); n > 0; --n)
        merges.emplace_back(static_cast<std::int32_t>(Draw<I>::of(w)),
                            static_cast<std::int32_t>(w.below(259)));
      return std::make_unique<text::Bpe>(
          merges, w.one_of({text::WordRule::gpt2, text::WordRule::bytes, text::WordRule::spaces}));
    }
    default:
      return std::make_unique<text::Bpe>(
          text::Bpe::train(text, w.hostile() ? Draw<I>::of(w) : 256 + static_cast<I>(w.below(5))));
  }
}

void tokenizers(World& w) {
  const std::string text = Draw<std::string>::of(w);
  const auto t = tokenizer(w, text);
  (void)t->kind(), (void)t->unit();
  if (t->size() > 0) readable([&] { return text::load_tokenizer(t->metadata(), "hostile"); });
  if (const auto* bpe = dynamic_cast<const text::Bpe*>(t.get()))
    (void)bpe->merges(), (void)bpe->words(), (void)bpe->bytes(static_cast<std::int32_t>(Draw<I>::of(w)));
  if (const auto* hf = dynamic_cast<const text::HfTokenizer*>(t.get())) {
    const auto id = static_cast<std::int32_t>(Draw<I>::of(w));
    (void)hf->json(), (void)hf->merges(), (void)hf->before(), (void)hf->after(), (void)hf->is_byte_level();
    (void)hf->is_special(id), (void)hf->is_added(id), (void)hf->ignores_merges(), (void)hf->find(text);
    (void)hf->has_byte_fallback(), (void)hf->added_tokens();
    (void)hf->unknown_token(), (void)&hf->stages();
    hf->encode(text, {.special = w.chance(0.5), .whole = w.chance(0.5)});
    hf->token_text(id);
  }
  if (w.chance(0.5)) text::HfTokenizer(text::tokenizer_json(*t), "hostile").encode(text);
  t->encode_whole(text);
  (void)t->safe_cut(text, w.below(2 * text.size() + 2));
  if (w.chance(0.5)) t->continuation(static_cast<std::int32_t>(Draw<I>::of(w)));
  if (const auto* chars = dynamic_cast<const text::CharVocab*>(t.get())) (void)chars->characters();
  t->decode(t->encode(w.chance(0.5) ? text : Draw<std::string>::of(w)));
  t->decode(ids(w));
}

void text_streams(World& w) {
  const auto t = tokenizer(w, Draw<std::string>::of(w));
  text::TextStream stream(*t, Draw<std::vector<std::string>>::of(w));
  for (const std::int32_t id : ids(w)) stream.add(id);
  if (stream.stopped() == stream.stop().empty())
    throw std::logic_error("stopped without a stop string, or the reverse");
  stream.finish();
  if (w.hostile()) stream.add(0);
}

// Reads random text in random order.
void json(World& w) {
  const std::string written = io::json_string(Draw<std::string>::of(w)), other = Draw<std::string>::of(w);
  io::JsonReader good(written, "hostile");
  good.string(), good.end();
  io::json_number(Draw<double>::of(w)), io::json_number(Draw<float>::of(w));
  const std::string text =
      w.one_of<std::string>({R"({"a": [1, true], "b": {}})", R"([[], {"a": null}, -1e5])", "[1, 2", R"({"a")",
                             "1 2", "tru", other});
  io::JsonReader reader(text, "hostile");
  if (w.chance(0.2)) reader.skip();
  for (std::uint64_t n = w.below(12); n > 0; --n) switch (w.below(11)) {
      case 0:
        reader.begin_object();
        break;
      case 10:
        reader.object({{"a", [&] { reader.skip(); }}, {"b", [&] { reader.integer(); }}});
        break;
      case 1:
        reader.begin_array();
        break;
      case 2:
        reader.next_key();
        break;
      case 3:
        reader.next_item();
        break;
      case 4:
        reader.number();
        break;
      case 5:
        reader.integer();
        break;
      case 6:
        reader.boolean();
        break;
      case 7:
        reader.null();
        break;
      case 8:
        reader.skip();
        break;
      default:
        (void)reader.peek();
    }
  reader.end();
  if (!text.empty()) readable([&] { io::JsonReader(text, "hostile").skip(); });  // end() has read everything
}

// Returns an offset that is in a short sequence or out of range.
std::size_t place(World& w) {
  return w.hostile() ? static_cast<std::size_t>(Draw<I>::of(w)) : w.below(4);
}

void token_files(World& w) {
  const std::string file = path(w);
  if (w.chance(0.3)) {
    const text::TokenFile plain(file, w.hostile() ? Draw<int>::of(w) : 2, Draw<I>::of(w));
    (void)plain.identity(), (void)plain.tokenizer().size();
    std::vector<std::int32_t> out(w.below(5));
    plain.tokens().copy(place(w), out);
    return;
  }
  const std::unique_ptr<text::Tokenizer> t = tokenizer(w, "ab");
  text::TokenFileWriter writer(file, *t);
  const std::vector<std::int32_t> written = ids(w);
  writer.write(written), writer.close();
  if (t->size() == 0) return;
  readable([&] {
    const text::TokenFile read(file);
    std::vector<std::int32_t> all(read.tokens().size());
    read.tokens().copy(0, all);
    if (all != written || writer.count() != written.size() || read.tokenizer().size() != t->size())
      throw std::logic_error("a token file changes when it is read back");
    return read.identity();
  });
  const text::TokenFile read(file);
  std::vector<std::int32_t> out(w.below(5));
  read.tokens().part(place(w), place(w)).copy(place(w), out);
  if (w.hostile()) writer.write(ids(w));
  if (w.hostile()) writer.close();
}

plot::Point point(World& w) {
  return {Draw<float>::of(w), Draw<float>::of(w)};
}

int side(World& w) {
  return w.hostile() ? w.one_of({Draw<int>::of(w), plot::Image::most}) : 9;
}

void image(World& w) {
  const int width = side(w), height = side(w);
#ifdef __SANITIZE_ADDRESS__
  // The operator new of this build cannot throw. If there is no memory, it ends the program.
  if (std::int64_t{width} * height > std::int64_t{1} << 24) return;
#endif
  plot::Image image(width, height, {});
  image.line(point(w), point(w), Draw<float>::of(w), {});
  image.disc(point(w), Draw<float>::of(w), {});
  std::vector<plot::Polyline> lines(w.below(3));
  for (plot::Polyline& line : lines)
    for (std::uint64_t n = w.below(4); n > 0; --n) line.push_back(point(w));
  image.text(point(w), Draw<std::string>::of(w),
             {.size = Draw<float>::of(w), .upwards = w.chance(0.5), .weight = Draw<float>::of(w)});
  image.set(Draw<int>::of(w), Draw<int>::of(w), {1, 2, 3});
  (void)image.at(Draw<int>::of(w), Draw<int>::of(w));
  if (image.width() < 100 && image.height() < 100) image.save_png(path(w));  // larger ones are slow
  image.fill(Draw<int>::of(w), Draw<int>::of(w), Draw<int>::of(w), Draw<int>::of(w), {},
             w.chance(0.5) ? 1 : Draw<float>::of(w));
  image.stroke(lines, Draw<float>::of(w), {}, w.chance(0.5) ? 1 : Draw<float>::of(w));
}

}  // namespace

std::vector<Call> file_calls() {
  std::vector<Call> all = training_calls();
  const std::vector<Call> others{
      {"save_parameters",
       [](World& w) {
         io::save_parameters(path(w), Draw<std::vector<Parameter>>::of(w), {{Draw<std::string>::of(w), "v"}});
       }},
      {"load_parameters",
       [](World& w) {
         io::load_parameters(path(w), Draw<std::vector<Parameter>>::of(w),
                             w.one_of({io::Dtypes::same, io::Dtypes::convert}));
       }},
      {"load_safetensors", [](World& w) { io::load_safetensors(path(w)); }},
      {"checkpoints", checkpoints},
      {"CheckpointStore", [](World& w) { io::CheckpointStore store(path(w)); }},
      {"tokenizers", tokenizers},
      {"load_tokenizer",
       [](World& w) {
         io::Metadata m{{"tokenizer", w.one_of<std::string>({"bytes", "bpe", "numbers", "chars", "none"})}};
         m[w.one_of<std::string>({"merges", "vocabulary", "characters"})] =
             w.chance(0.5) ? Draw<std::string>::of(w)
                           : w.one_of<std::string>({"97 98\n", "7", "ab", "-1 0\n"});
         text::load_tokenizer(m, "hostile");
       }},
      {"text streams", text_streams},
      {"json", json},
      {"files",
       [](World& w) {
         const std::string content = Draw<std::string>::of(w);
         const std::string_view pieces[] = {content, content};
         switch (w.below(5)) {
           case 0:
             return io::write_new_file(path(w), pieces, "hostile");
           case 1:
             return io::overwrite_start(path(w), content, "hostile");
           case 2:
             return (void)io::read_file(path(w), "hostile");
           case 3:
             return io::sync_directory(path(w), "hostile");
           default:
             return io::replace_file(path(w), pieces, "hostile");
         }
       }},
      {"require_replaceable",
       [](World& w) {
         io::require_replaceable(path(w), "hostile", w.one_of({io::Existing::replace, io::Existing::refuse}));
       }},
      {"parsers",
       [](World& w) {
         const std::string content = Draw<std::string>::of(w);
         switch (w.below(4)) {
           case 0:
             return (void)io::parse_safetensors(content, "hostile");
           case 1:
             (void)io::is_manifest(content);
             (void)io::names_in_manifest(content);
             (void)io::json_excerpt(content);
             return (void)io::parse_manifest(content, "hostile");
           case 2:
             return (void)text::parse_merges(content, "hostile");
           default:
             return (void)text::parse_token_header(content, "hostile");
         }
       }},
      {"model files",
       [](World& w) {
         io::Metadata m = io::to_metadata({});
         m[w.one_of<std::string>(
             {"width", "layers", "heads", "vocabulary", "context", "bias", "architecture"})] =
             w.chance(0.5) ? Draw<std::string>::of(w) : std::to_string(Draw<I>::of(w));
         io::model_config(m, "hostile");
       }},
      {"save_safetensors",
       [](World& w) {
         const Array a = Draw<Array>::of(w);
         io::TensorView v{Draw<DType>::of(w), Draw<std::vector<I>>::of(w), {}};
         if (a.raw()) v.bytes = {a.raw(), a.bytes()};
         if (w.chance(0.5)) v.dtype = a.dtype(), v.shape.assign(a.shape().begin(), a.shape().end());
         io::save_safetensors(path(w), {{Draw<std::string>::of(w), v}});
         io::load_safetensors(path(w));
       }},
      {"check_finite", [](World& w) { io::check_finite(Draw<std::vector<Parameter>>::of(w), "hostile"); }},
      {"texts",
       [](World& w) {
         text::load_text(path(w));
         const std::vector<std::int32_t> tokens = ids(w);
         text::split_text(tokens);
       }},
      {"token files", token_files},
      {"OutputFile",
       [](World& w) {
         io::OutputFile file(path(w), "hostile",
                             w.one_of({io::OutputFile::Start::empty, io::OutputFile::Start::append}));
         for (std::uint64_t n = w.below(5); n > 0; --n) {
           const std::uint64_t kind = w.below(4);
           if (kind < 2) file.write(Draw<std::string>::of(w));
           if (kind == 2) file.sync();
           if (kind == 3) file.close();
         }
       }},
      {"MappedFile",
       [](World& w) {
         const io::MappedFile file(path(w), "hostile");
         file.release(static_cast<std::size_t>(Draw<I>::of(w)), static_cast<std::size_t>(Draw<I>::of(w)));
         (void)file.bytes();
         file.check();
         (void)file.pages();
         std::byte some[7];
         file.read(static_cast<std::size_t>(Draw<I>::of(w)), std::span(some).first(w.below(8)));
       }},
      {"map_safetensors", [](World& w) { (void)io::map_safetensors(path(w), "hostile").tensors.size(); }},
      {"from_pretrained", pretrained},
      {"TokenView",
       [](World& w) {
         const std::vector<std::int32_t> tokens = ids(w);
         const text::TokenView view(tokens.data(), tokens.size(), w.hostile() ? Draw<int>::of(w) : 4,
                                    count(w, 9, 1), "hostile");
         std::vector<std::int32_t> out(w.below(5));
         view.part(place(w), place(w)).part(place(w), place(w)).copy(place(w), out);
       }},
      {"draw_plot", [](World& w) { (void)plot::draw_plot(drawn_plot(w)).png().size(); }},
      {"save_plot", [](World& w) { plot::save_plot(path(w), drawn_plot(w)); }},
      {"colours",
       [](World& w) {
         plot::heat_color(Draw<float>::of(w));
         plot::palette(static_cast<std::size_t>(Draw<I>::of(w)));
       }},
      {"heat maps",
       [](World& w) {
         plot::HeatMaps h;
         h.title = Draw<std::string>::of(w);
         h.rows = count(w, 3), h.columns = count(w, 3), h.across = count(w, 2, 1);
         h.maps.push_back({"m", std::vector<float>(w.hostile() ? w.below(9)
                                                               : static_cast<std::size_t>(
                                                                     std::abs(h.rows % 3 * (h.columns % 3))),
                                                   Draw<float>::of(w))});
         plot::draw_heat_maps(h);
       }},
      {"Image", image},
      {"smoothed",
       [](World& w) { plot::smoothed(Draw<std::vector<double>>::of(w), Draw<std::int64_t>::of(w)); }},
  };
  all.insert(all.end(), others.begin(), others.end());
  return all;
}

}  // namespace tg::hostile
