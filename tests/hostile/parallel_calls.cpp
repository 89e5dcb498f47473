// Calls functions of parallel/ on one rank. tests/parallel tests several ranks, which are several processes.
#include <tilegrad/parallel/group.h>

#include "tests/hostile/world.h"

namespace tg::hostile {

namespace {

std::optional<std::string> drawn_variable(World& w) {
  if (w.chance(0.3)) return std::nullopt;
  return w.hostile() ? Draw<std::string>::of(w) : std::to_string(w.below(3));
}

std::chrono::milliseconds timeout(World& w) {
  return std::chrono::milliseconds(w.hostile() ? Draw<std::int64_t>::of(w) : 1000);
}

}  // namespace

std::vector<Call> parallel_calls() {
  return {
      {"world", [](World&) { parallel::world(); }},
      {"world_of",
       [](World& w) {
         parallel::world_of([&](const std::string&) { return drawn_variable(w); },
                            static_cast<long>(Draw<std::int64_t>::of(w)))
             .has_several_hosts();
       }},
      {"exit_code_of", [](World& w) { parallel::exit_code_of(Error(Draw<std::string>::of(w))); }},
      {"join",
       [](World& w) {
         parallel::World one;
         if (w.hostile()) one.rank = Draw<int>::of(w);
         if (w.hostile() && w.chance(0.2)) {  // several hosts without a token
           one.size = 2, one.address = Draw<std::string>::of(w), one.port = Draw<int>::of(w);
         }
         if (w.hostile() && w.chance(0.5)) one.size = -static_cast<int>(w.below(3));
         const auto group = parallel::join(
             one, {.join_timeout = timeout(w), .step_timeout = timeout(w), .end_after = timeout(w)});
         const std::vector<std::byte> bytes(w.below(100));
         group->communicator().share(bytes, [](auto) {});
         group->communicator().check_lost();
         group->communicator().note_wait(w.chance(0.5));
         const auto heard = group->communicator().on_lost([] {});
         if (w.chance(0.5)) group->communicator().report_lost();
         group->progress(Draw<std::int64_t>::of(w));
         { const parallel::Group::Pause pause = group->pause(); }
         group->fail(Draw<std::string>::of(w));
         group->check();
       }},
  };
}

}  // namespace tg::hostile
