// Text, checkpoints and plots (io/). Files that are damaged are the fuzz targets' (tests/fuzz).
#include <tilegrad/io/files/json.h>
#include <tilegrad/io/plots/heat_map.h>
#include <tilegrad/io/plots/png_plot.h>
#include <tilegrad/io/text/bpe.h>
#include <tilegrad/io/text/text.h>
#include <tilegrad/io/text/token_file.h>
#include <tilegrad/io/training/metrics.h>
#include <tilegrad/io/training/sums.h>
#include <tilegrad/io/training/text_batches.h>
#include "tests/hostile/world.h"

namespace tg::hostile {

namespace {

using I = std::int64_t;

// A path in the current directory, which is temporary (hostile.cpp), that may or may not hold something.
std::string path(World& w) {
  return w.hostile() ? w.one_of<std::string>(
                           {"", "/", ".", "/dev/full", "/dev/null", "no/file", std::string(300, 'x')})
                     : w.one_of<std::string>({"a", "b"});
}

std::vector<std::int32_t> ids(World& w) {
  std::vector<std::int32_t> all(w.below(40));
  for (std::int32_t& id : all) id = static_cast<std::int32_t>(Draw<I>::of(w));
  return all;
}

plot::Plot drawn_plot(World& w) {
  plot::Plot p{.title = Draw<std::string>::of(w), .log_x = w.chance(0.3), .log_y = w.chance(0.3)};
  for (std::uint64_t n = w.below(3); n > 0; --n)
    p.series.push_back(
        {Draw<std::string>::of(w), Draw<std::vector<double>>::of(w), Draw<std::vector<double>>::of(w)});
  if (w.chance(0.3)) p.boxes.push_back({Draw<double>::of(w), Draw<double>::of(w), Draw<double>::of(w), 1});
  p.width = w.hostile() ? Draw<int>::of(w) : 320, p.height = w.hostile() ? Draw<int>::of(w) : 240;
  return p;
}

}  // namespace

std::vector<Call> file_calls() {
  return {
      {"save_parameters",
       [](World& w) {
         io::save_parameters(path(w), Draw<std::vector<Parameter>>::of(w), {{Draw<std::string>::of(w), "v"}});
       }},
      {"load_parameters",
       [](World& w) { io::load_parameters(path(w), Draw<std::vector<Parameter>>::of(w)); }},
      {"load_safetensors", [](World& w) { io::load_safetensors(path(w)); }},
      {"checkpoints",
       [](World& w) {
         const std::string directory = w.chance(0.5) ? "run" : "./" + path(w) + ".run";
         io::CheckpointStore store(directory);
         const std::vector<io::CheckpointFile> files{
             {Draw<std::string>::of(w), Draw<std::vector<Parameter>>::of(w)}};
         store.save(Draw<I>::of(w), Draw<I>::of(w), files);
         const io::Checkpoint last(directory + "/last");
         last.restore(files);
       }},
      {"tokenizers",
       [](World& w) {
         const std::string text = Draw<std::string>::of(w);
         std::unique_ptr<text::Tokenizer> t;
         switch (w.below(4)) {
           case 0:
             t = std::make_unique<text::CharVocab>(std::string_view(text));
             break;
           case 1:
             t = std::make_unique<text::ByteTokenizer>();
             break;
           case 2:
             t = std::make_unique<text::NumberTokenizer>(Draw<I>::of(w));
             break;
           default:
             t = std::make_unique<text::Bpe>(text::Bpe::train(text, 256 + static_cast<I>(w.below(5))));
         }
         t->decode(t->encode(w.chance(0.5) ? text : Draw<std::string>::of(w)));
         t->decode(ids(w));
         text::load_tokenizer(t->metadata(), "hostile");
       }},
      {"batches",
       [](World& w) {
         const std::vector<std::int32_t> tokens = ids(w);
         const I rows = w.hostile() ? Draw<I>::of(w) : 2, context = w.hostile() ? Draw<I>::of(w) : 3;
         const train::TextBatches batches(tokens, rows, rows, context);
         std::vector<std::int32_t> x(w.hostile() ? w.below(9) : 6), y(w.hostile() ? w.below(9) : 6);
         batches.training(w.below(3), Draw<I>::of(w), x, y);
         batches.validation(Draw<I>::of(w), Draw<I>::of(w), x, y);
       }},
      {"sums",
       [](World& w) {
         const train::Sums sums(Draw<I>::of(w), w.hostile() ? Draw<I>::of(w) : 2,
                                w.hostile() ? Draw<I>::of(w) : 12);
         std::vector<std::int32_t> x(w.hostile() ? w.below(9) : 24), y = x;
         sums.random(0, w.below(9), w.hostile() ? Draw<I>::of(w) : 0, x, y);
         sums.evaluation(Draw<I>::of(w), x, y);
         sums.text(Draw<I>::of(w), Draw<I>::of(w));
       }},
      {"metrics",
       [](World& w) {
         train::MetricsWriter file(path(w));
         file.write({.step = Draw<I>::of(w), .train_loss = Draw<float>::of(w)});
         file.close();
         train::read_metrics(path(w));
       }},
      {"cut_metrics", [](World& w) { train::cut_metrics(path(w), Draw<I>::of(w)); }},
      {"to_json", [](World& w) { train::to_json({.step = Draw<I>::of(w), .lr = Draw<float>::of(w)}); }},
      {"json",
       [](World& w) {
         const std::string text = io::json_string(Draw<std::string>::of(w)), other = Draw<std::string>::of(w);
         io::JsonReader json(text, "hostile");
         json.string(), json.end();
         io::json_number(Draw<double>::of(w)), io::json_number(Draw<float>::of(w));
         io::JsonReader(other, "hostile").skip();
       }},
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
      {"require_replaceable", [](World& w) { io::require_replaceable(path(w), "hostile"); }},
      {"parsers",
       [](World& w) {
         const std::string content = Draw<std::string>::of(w);
         switch (w.below(4)) {
           case 0:
             return (void)io::parse_safetensors(content, "hostile");
           case 1:
             (void)io::is_manifest(content);
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
      {"token files",
       [](World& w) {
         const std::string file = path(w);
         text::TokenFileWriter writer(file, text::ByteTokenizer());
         writer.write(ids(w)), writer.close();
         const text::TokenFile read(file);
         std::vector<std::int32_t> out(w.below(5));
         read.tokens().copy(static_cast<std::size_t>(Draw<I>::of(w)), out);
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
         h.rows = Draw<I>::of(w), h.columns = Draw<I>::of(w), h.across = Draw<I>::of(w);
         h.maps.push_back({"m", std::vector<float>(w.below(9), Draw<float>::of(w))});
         plot::draw_heat_maps(h);
       }},
      {"Image",
       [](World& w) {
         plot::Image image(w.hostile() ? Draw<int>::of(w) : 9, w.hostile() ? Draw<int>::of(w) : 9, {});
         image.line({Draw<float>::of(w), Draw<float>::of(w)}, {Draw<float>::of(w), Draw<float>::of(w)},
                    Draw<float>::of(w), {});
         image.disc({Draw<float>::of(w), Draw<float>::of(w)}, Draw<float>::of(w), {});
         image.fill(Draw<int>::of(w), Draw<int>::of(w), Draw<int>::of(w), Draw<int>::of(w), {},
                    Draw<float>::of(w));
         image.text({Draw<float>::of(w), 0}, Draw<std::string>::of(w), {.size = Draw<float>::of(w)});
         (void)image.at(Draw<int>::of(w), Draw<int>::of(w));
       }},
      {"smoothed", [](World& w) { plot::smoothed(Draw<std::vector<double>>::of(w), Draw<double>::of(w)); }},
  };
}

}  // namespace tg::hostile
