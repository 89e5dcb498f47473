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

constexpr DType all_dtypes[] = {f64, f32, bf16, f16};

template <class Range>
std::string names_of(const Range& all) {
  std::string names;
  for (const auto x : all) names += (names.empty() ? "" : ",") + std::string(name_of(x));
  return names;
}

// Returns the items of `all` that the option's list names. Throws UsageError for an unknown name.
template <class Range>
auto named_in(const std::string& list, const Range& all, const std::string& option) {
  std::vector<std::ranges::range_value_t<Range>> chosen;
  for (const std::string& word : words_of(list)) {
    const auto at = std::ranges::find_if(all, [&](const auto x) { return name_of(x) == word; });
    if (at == std::ranges::end(all))
      throw UsageError(option + " got '" + word + "', expected some of " + names_of(all));
    chosen.push_back(*at);
  }
  return chosen;
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
  std::fprintf(stderr, "gradcheck: no curve was drawn, because no selected case has a gradient\n");
  return nothing_ran;
}

// gradcheck --collectives: adds the checks of ops that communicate between ranks. `names` selects ops and
// samples. If it is empty, all are checked. All ranks of the group must make the same call. If a name selects
// nothing, prints a line on stderr for each such name and returns false.
bool add_rank_checks(Report& report, const std::shared_ptr<parallel::Group>& group, const Options& options,
                     const std::vector<std::string>& names) {
  const std::shared_ptr<Communicator> ranks(group, &group->communicator());
  const std::vector<RankCase> cases = rank_cases(ranks->size());
  bool all_known = true;
  for (const std::string& name : names) {
    bool is_known = false;
    for (const RankCase& c : cases) is_known |= !select({c.f}, {name}).empty();
    if (!is_known && ranks->rank() == 0)
      std::fprintf(stderr, "gradcheck: no op that communicates between ranks is named '%s'\n",
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

// Prints the report and returns the exit code. If `json` is not empty, also writes the report to that file.
int finish(const Report& report, std::chrono::steady_clock::time_point start, const std::string& json) {
  report.finish(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  if (!json.empty()) write_file(json, report.json(), "gradcheck");
  return report.exit_code();
}

template <class Join>
int run(int argc, char** argv, const Join& join) {
  std::vector<std::string> names, plugins;
  std::string dtypes = names_of(all_dtypes), views = names_of(all_views), backend = "cpu", json, curve;
  std::int64_t order = 1, seed = 0;
  bool list = false, print_reference = false, print_samples = false, all = false, fast = false,
       mutants = false, verbose = false, collectives = false, overwrite = false;

  Args args(
      "gradcheck",
      "Checks the gradients of ops and layers against finite differences, and other dtypes against f64.");
  args.flag("list", "list everything that can be checked", list);
  args.flag("reference", "print the reference of all ops (docs/ops.md) as Markdown", print_reference);
  args.flag("op-samples", "print the samples of all ops (docs/notes/op-samples.md) as Markdown",
            print_samples);
  args.flag("all", "check every op and layer", all);
  args.option("op", "NAME", "op, layer, or one sample of it (softmax/rows), to check; may be repeated",
              names);
  args.option("dtypes", "LIST", "comma-separated dtypes to check, from " + dtypes, dtypes);
  args.option("views", "LIST", "comma-separated memory layouts of the inputs, from " + views, views);
  args.option("backend", "NAME", "device of the checked programs", backend, {.choices = {"cpu", "cuda"}});
  args.option("order", "N", "order of the derivatives to check: 1 for gradients, 2 for second derivatives",
              order, {.min = 1, .max = 2});
  args.flag("quick", "do a quick run: check four random projections instead of every element", fast);
  args.option("seed", "N", "random seed of all inputs", seed, {.min = 0});
  args.option("json", "FILE", "also write all results to this file", json);
  args.option("plot", "FILE.png",
              "picture to draw: the error as a function of the step h, for the ops of --op", curve,
              {.suffix = ".png"});
  declare_overwrite(args, overwrite);
  args.option("plugin", "FILE.so", "shared library that registers ops; may be repeated", plugins);
  args.flag("collectives", "check the ops that communicate between ranks, on the ranks that launch started",
            collectives);
  args.flag("mutate", "mutation test: inject bugs into every gradient; each must be detected", mutants);
  args.flag("verbose", "print every check; also -v", verbose);
  args.example("gradcheck --all", "check every op and layer, in all dtypes and views");
  args.example("gradcheck --op flash_attn --quick", "check one op quickly");
  args.example("gradcheck --op softmax --dtypes f64 --views transposed -v", "print the details of one view");
  args.example("gradcheck --plugin ./libmyop.so --op my_op", "check a user-defined op");
  args.example("launch -n 4 gradcheck --collectives",
               "check ops that communicate between ranks, with 4 processes");
  args.example("gradcheck --all --mutate", "verify that the checker detects injected bugs");
  std::vector<const char*> words(argv, argv + argc);
  for (const char*& w : words)
    if (std::string_view(w) == "-v") w = "--verbose";
  if (const auto code = args.parse(argc, words.data())) return *code;

  Run run{argv[0], {}, plugins, verbose};
  run.options.views = named_in(views, all_views, "--views");
  run.options.dtypes = named_in(dtypes, all_dtypes, "--dtypes");
  run.options.order = static_cast<int>(order);
  run.options.fast = fast;
  run.options.seed = static_cast<std::uint64_t>(seed);
  if (!list && !print_reference && !print_samples && !all && !collectives && names.empty())
    throw UsageError(
        "nothing to do: give --all, --op NAME, --collectives, --list, --reference or --op-samples");
  for (const char* other :
       {"all", "list", "reference", "op-samples", "views", "order", "quick", "plot", "plugin", "mutate"})
    if (collectives && args.given(other))
      throw UsageError("--collectives and --" + std::string(other) + " exclude each other");
  if (all && !names.empty()) throw UsageError("--all and --op exclude each other");
  if (!curve.empty() && names.empty()) throw UsageError("--plot requires --op NAME");
  check_outputs("gradcheck", {json, curve}, overwrite, plugins);
  std::shared_ptr<parallel::Group> group;
  if (collectives) {
    group = join();
    run.ranks = group->communicator().size();
    if (run.ranks == 1)
      throw UsageError("--collectives requires several ranks: launch -n 4 gradcheck --collectives");
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
  if (collectives) {
    if (!add_rank_checks(report, group, run.options, names)) return nothing_ran;
    return finish(report, start, group->communicator().rank() == 0 ? json : "");
  }
  for (const std::string& p : plugins) load_plugin(p);
  if (print_reference || print_samples) {
    std::fputs(print_reference ? reference().c_str() : sample_list().c_str(), stdout);
    return 0;
  }
  std::vector<Case> every = all_cases();
  if (run.options.device.kind != Device::cpu_kind)
    std::erase_if(every, [](const Case& c) { return c.cpu_only; });
  const std::vector<Case> cases = select(every, names);
  if (list) {
    print_list(cases);
    return untested(names).empty() ? 0 : nothing_ran;
  }
  if (const auto lost = unknown(every, names); !lost.empty()) {
    for (const std::string& l : lost) report_failure("gradcheck", l);
    return nothing_ran;
  }
  if (!curve.empty()) return draw_v_curve(cases, run.options, curve);

  for (const std::string& op : untested(names)) report.incomplete(op + " has a gradient but no sample");
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
