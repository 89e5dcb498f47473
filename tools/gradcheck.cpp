// gradcheck compares the gradients of every op, layer and user-defined op with finite differences.
#include <tilegrad/autograd/gradcheck/gradcheck.h>

#include <chrono>

#include <tilegrad/core/run/backend.h>
#include <tilegrad/io/files/file.h>
#include <tilegrad/io/plots/png_plot.h>
#include <tilegrad/parallel/group.h>
#include "autograd/gradcheck/ranks.h"
#include "core/base/messages.h"
#include "tools/args.h"
#include "tools/gradcheck/report.h"
#include "tools/gradcheck/select.h"
#include "tools/output_files.h"
#include "tools/run_as_rank.h"

namespace {

using namespace tg;
using namespace tg::gradcheck;

constexpr int nothing_ran = 3;

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> words;
  for (std::size_t at = 0; at <= list.size();) {
    const std::size_t comma = std::min(list.find(',', at), list.size());
    words.push_back(list.substr(at, comma - at));
    at = comma + 1;
  }
  return words;
}

std::vector<View> parse_views(const std::string& list, std::string& mistake) {
  std::vector<View> views;
  for (const std::string& word : split(list)) {
    const std::size_t before = views.size();
    for (View v : all_views)
      if (name_of(v) == word) views.push_back(v);
    if (views.size() == before) mistake = "--views got '" + word + "'";
  }
  return views;
}

std::vector<DType> parse_dtypes(const std::string& list, std::string& mistake) {
  std::vector<DType> dtypes;
  for (const std::string& word : split(list)) {
    const std::size_t before = dtypes.size();
    for (DType t : {f64, f32, bf16, f16})
      if (tg::name_of(t) == word) dtypes.push_back(t);
    if (dtypes.size() == before) mistake = "--dtype got '" + word + "', expected some of f64,f32,bf16,f16";
  }
  return dtypes;
}

int draw_v_curve(const std::vector<Case>& cases, const Options& options, const std::string& file) {
  for (const Case& c : cases) {
    const VCurve curve = v_curve(c, options);
    if (curve.h.empty()) continue;
    plot::save_plot(
        file,
        {.title = "gradcheck " + c.text() + ": error of difference quotients",
         .x_label = "step h",
         .y_label = "max |numeric - analytic| / max |analytic|",
         .log_x = true,
         .log_y = true,
         .series = {{.label = "f64, 2 points", .x = curve.h, .y = curve.two_point, .markers = true},
                    {.label = "f64, 4 points", .x = curve.h, .y = curve.four_point, .markers = true},
                    {.label = "f32, 4 points", .x = curve.h, .y = curve.four_point_f32, .markers = true}}});
    std::printf("%s: %s\n", c.text().c_str(), printable(file).c_str());
    return 0;
  }
  std::fprintf(stderr, "gradcheck: nothing to differentiate, so no curve was drawn\n");
  return nothing_ran;
}

// gradcheck --ranks: adds the checks of ops in which ranks exchange data, those of the ops and samples with
// these names, or of all when there are none. All ranks of the group call it alike. False, with a line on
// stderr for each, if a name selects nothing.
bool add_rank_checks(Report& report, const std::shared_ptr<parallel::Group>& group, const Options& options,
                     const std::vector<std::string>& names) {
  const std::shared_ptr<Communicator> ranks(group, &group->communicator());
  const std::vector<RankCase> cases = rank_cases(ranks->size());
  bool all_known = true;
  for (const std::string& name : names) {
    bool is_known = false;
    for (const RankCase& c : cases) is_known |= !select({c.f}, {name}).empty();
    if (!is_known && ranks->rank() == 0)
      std::fprintf(stderr, "gradcheck: no op in which ranks exchange data is named '%s'\n",
                   printable(name).c_str());
    all_known &= is_known;
  }
  if (!all_known) return false;
  for (const RankCase& c : cases) {
    if (select({c.f}, names).empty()) continue;
    if (std::vector<Result> results = check_ranks(c, ranks, options); !results.empty())
      report.add(c.f, std::move(results));
  }
  return true;
}

// Prints the report, writes it to the file `json` if that is named, and returns the exit code.
int finish(const Report& report, std::chrono::steady_clock::time_point start, const std::string& json) {
  report.finish(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  if (!json.empty()) {
    const std::string text = report.json();
    const std::string_view piece = text;
    io::replace_file(json, std::span(&piece, 1), "gradcheck");
  }
  return report.exit_code();
}

template <class Join>
int run(int argc, char** argv, const Join& join) {
  std::vector<std::string> names, plugins;
  std::string dtypes = "f64,f32,bf16,f16",
              views = "contiguous,transposed,sliced,offset,expanded,expanded_last", backend = "cpu", json,
              curve;
  std::int64_t order = 1, seed = 0;
  bool list = false, print_reference = false, all = false, fast = false, mutants = false, verbose = false,
       ranks = false, overwrite = false;

  Args args("gradcheck", "Compares gradients with finite differences, and dtypes with f64.");
  args.flag("list", "list everything that can be checked", list);
  args.flag("reference", "print the reference of all ops as Markdown, docs/ops.md", print_reference);
  args.flag("all", "check everything", all);
  args.option("op", "NAME", "an op, a layer, or one sample of it (softmax/rows); may be repeated", names);
  args.option("dtype", "LIST", "some of f64,f32,bf16,f16", dtypes);
  args.option("views", "LIST",
              "how inputs lie in memory: some of contiguous,transposed,sliced,offset,expanded,expanded_last",
              views);
  args.option("backend", "NAME", "where the checked programs run", backend, {.choices = {"cpu", "cuda"}});
  args.option("order", "N", "2 checks second derivatives", order, {.min = 1, .max = 2});
  args.flag("quick", "four random projections instead of every element", fast);
  args.option("seed", "N", "seed of all random numbers", seed, {.min = 0});
  args.option("json", "FILE", "also write all results to this file", json);
  args.option("vcurve", "FILE.png", "plot the error as a function of the step h, for the ops given", curve,
              {.suffix = ".png"});
  declare_overwrite(args, overwrite);
  args.option("plugin", "FILE.so", "a library that registers ops; may be repeated", plugins);
  args.flag("ranks", "check the ops in which ranks exchange data, on the ranks that launch started", ranks);
  args.flag("mutate", "plant faults in every gradient; each must be caught", mutants);
  args.flag("verbose", "print every check; also -v", verbose);
  args.example("gradcheck --all", "every op and layer, all dtypes and views");
  args.example("gradcheck --op flash_attn --quick", "a quick look at one op");
  args.example("gradcheck --op softmax --dtype f64 --views transposed -v", "details of one view");
  args.example("gradcheck --plugin ./libmyop.so --op my_op", "an op of your own");
  args.example("launch -n 4 gradcheck --ranks", "ops in which ranks exchange data, over 4 processes");
  args.example("gradcheck --all --mutate", "does the checker catch planted faults?");
  std::vector<const char*> words(argv, argv + argc);
  for (const char*& w : words)
    if (std::string_view(w) == "-v") w = "--verbose";
  if (const auto code = args.parse(argc, words.data())) return *code;

  Run run{argv[0], {}, plugins, verbose};
  std::string mistake;
  run.options.views = parse_views(views, mistake);
  run.options.dtypes = parse_dtypes(dtypes, mistake);
  run.options.order = static_cast<int>(order);
  run.options.fast = fast;
  run.options.seed = static_cast<std::uint64_t>(seed);
  if (!mistake.empty()) return args.fail(mistake);
  if (!list && !print_reference && !all && !ranks && names.empty())
    return args.fail("nothing to do: give --all, --op NAME, --ranks, --list or --reference");
  for (const char* other :
       {"all", "list", "reference", "views", "order", "quick", "vcurve", "plugin", "mutate"})
    if (ranks && args.given(other))
      return args.fail("--ranks and --" + std::string(other) + " exclude each other");
  if (all && !names.empty()) return args.fail("--all and --op exclude each other");
  if (!curve.empty() && names.empty()) return args.fail("--vcurve needs an op: --op NAME");
  check_outputs("gradcheck", {json, curve}, overwrite, plugins);
  std::shared_ptr<parallel::Group> group;
  if (ranks) {
    group = join();
    run.ranks = group->communicator().size();
    if (run.ranks == 1) return args.fail("--ranks is for several ranks: launch -n 4 gradcheck --ranks");
  }
  run.options.device = Device::parse(own_gpu(backend, run.ranks));
  try {
    tg::backend(run.options.device);
  } catch (const DeviceError& e) {
    std::fprintf(stderr, "gradcheck: %s\n", e.what());
    return nothing_ran;
  }

  const auto start = std::chrono::steady_clock::now();
  Report report(run);
  if (ranks) {
    if (!add_rank_checks(report, group, run.options, names)) return nothing_ran;
    return finish(report, start, group->communicator().rank() == 0 ? json : "");
  }
  for (const std::string& p : plugins) load_plugin(p);
  if (print_reference) {
    std::fputs(reference().c_str(), stdout);
    return 0;
  }
  const std::vector<Case> every = all_cases(), cases = select(every, names);
  if (list) {
    print_list(cases);
    return untested(names).empty() ? 0 : nothing_ran;
  }
  if (const auto lost = unknown(every, names); !lost.empty()) {
    for (const std::string& l : lost) report_failure("gradcheck", l);
    return nothing_ran;
  }
  if (!curve.empty()) return draw_v_curve(cases, run.options, curve);

  for (const std::string& op : untested(names)) report.incomplete(op + " has a gradient and no sample");
  for (const Case& c : cases) {
    if (!mutants)
      report.add(c, check(c, run.options));
    else if (std::vector<Mutant> planted = mutate(c, run.options); !planted.empty())
      report.add(c, std::move(planted));
  }
  return finish(report, start, json);
}

}  // namespace

int main(int argc, char** argv) {
  return run_as_rank(
      "gradcheck", [&](const auto& join) { return run(argc, argv, join); }, 2);
}
