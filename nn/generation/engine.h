// Engine: a model continues many sequences at once. They join and leave at any step, and keep their keys and
// values in pages of one cache [Stratos, PagedAttention]: sequences that begin alike share pages, and where
// pages run out, the sequence that came last waits until there are some again.
//
// What a sequence becomes depends on its request alone: not on the sequences beside it, on when it joined, on
// the size of pages, nor on whether it had to wait.
//
// Threads: one thread at a time may call functions of an Engine, which throw Error if they find another one
// in a call. Several engines may share a model's parameters.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include <tilegrad/nn/generation/sampling.h>
#include <tilegrad/nn/generation/scheduler.h>
#include <tilegrad/nn/layers/autocast.h>
#include <tilegrad/nn/layers/kv_cache.h>
#include <tilegrad/nn/models/language_model.h>

namespace tg::nn {

class Engine {
 public:
  struct Options {
    std::int64_t slots = 16;        // sequences in a step
    std::int64_t cache_tokens = 0;  // room in the cache; 0: a whole context for each slot
    std::int64_t page_size = 16;    // tokens in a page
    std::int64_t chunk = 256;       // tokens of prompts in a step
    std::int64_t host_tokens = 0;   // of sequences that wait: kept on the host, not computed again
    int threads = 0;                // 0: all of the machine's
    Precision precision = Precision::full;
    std::optional<DType> cache_dtype = {};  // of keys and values in the cache; default: as they are computed
    // A step is started before the tokens of the one before are known, unless there is a search, and its
    // tokens stay on the device. So a device never waits for its host, and a sequence that ends has been read
    // once more, for nothing. Sequences are the same. Default: on a GPU; a CPU has nothing to gain.
    std::optional<bool> ahead = {};
  };
  using Handle = std::uint64_t;
  // Why a sequence ends: it has as many tokens as it was to have, or one of its end tokens came.
  enum class End { no, count, token };
  struct Token {
    Handle sequence;
    std::int32_t token;
    End end;                        // the sequence's last token, if it is not `no`
    std::span<const float> logits;  // [vocabulary] that it was chosen from, if the request asks for them;
                                    // valid during the call
  };
  struct Request {
    std::vector<std::int32_t> prompt;
    std::int64_t tokens = 0;  // at most so many more; 0: as many as the context has room for
    Sampling sampling = {};
    std::uint64_t seed = 1;               // of the draws, which depend on it and on the token's number
    std::vector<std::int32_t> ends = {};  // any of these tokens ends the sequence
    bool logits = false;                  // report() gets them: they are copied from the device
    // Called for each token; false ends the sequence. It may add, fork and cancel sequences, but not call
    // step(). What it throws comes out of step(), and the next step goes on behind it.
    std::function<bool(const Token&)> report = {};
  };

  // Beam search: the likeliest continuations of a prompt, as far as keeping `beams` of them finds them. They
  // share the pages of what they have in common, and each takes a slot.
  struct Search {
    std::vector<std::int32_t> prompt;
    std::int64_t tokens = 0;  // as in Request
    std::int64_t beams = 4;
    std::vector<std::int32_t> ends = {};                       // any of these tokens ends a continuation
    std::function<void(std::vector<Hypothesis>)> report = {};  // called once, likeliest first
  };

  // Parameters are read at every run. A layer whose rows depend on earlier ones must read them from the
  // call's cache; throws Error for a flash_attn that does not. Throws ShapeError for options that are not
  // positive, OutOfMemory where the cache does not fit. Errors of the model's runs name the line of this
  // call.
  Engine(LanguageModel model, const Options& options,
         const std::source_location& where = std::source_location::current());
  ~Engine();

  // Compiles all programs that steps may need, and runs each of them once, on no sequence. Without it a
  // program is compiled when a step first needs it.
  void prepare();

  // Throws Error for an empty prompt, a token that the model does not have, more tokens than its context or
  // the whole cache has room for, and a sampling with numbers out of range.
  Handle add(Request request);
  // Throws Error as add() does, and for more beams than slots or than the whole cache has room for without
  // sharing.
  Handle search(Search request);
  // The same sequence once more, as far as it is written, with draws of its own.
  Handle fork(Handle sequence, std::uint64_t seed, std::function<bool(const Token&)> report = {});
  // The sequence or search ends where it is. A handle of what is over is ignored.
  void cancel(Handle sequence);

  // One token more for each sequence that has a slot and whose prompt has been read. Returns whether there
  // are sequences or searches left. An error of the run leaves all sequences as they were, to be read again.
  // Throws Error for a sequence or a search that has no token to choose, as all logits are NaN: it ends, and
  // the others go on.
  bool step();
  void run() {
    while (step()) {
    }
  }

  // After a change of the weights: nothing computed before is used for sequences that join from now on. With
  // Options::ahead, the next step has been computed before.
  void forget();

  std::size_t sequences() const { return sequences_.size(); }  // a beam is one too
  const Scheduler& scheduler() const { return scheduler_; }
  const KvCache& cache() const { return cache_; }
  const SharedArena& arena() const { return *arena_; }  // of intermediate results, one for all programs
  std::int64_t vocabulary() const { return vocabulary_; }
  // Seconds that all steps so far have spent in the model's runs, and waiting for their results. The rest of
  // a step is the host's own work.
  double run_seconds() const { return run_seconds_; }

 private:
  struct Sequence;
  struct Beams;  // a search
  struct Run;    // a program for some number of single tokens, and of groups of a prompt's
  struct Move;   // a program that moves rows of the cache
  // Where a sequence's next token comes from: row `row` of the step's run `run`.
  struct Drawn {
    Handle sequence;
    std::size_t run;
    std::int64_t row;
  };
  // The runs of a step that has been started.
  struct Step {
    struct Started {
      Run* run;
      Pending values;
      bool has_logits;  // are among them
      // Once they are there.
      std::span<const std::int32_t> tokens = {};  // [sequences of the run]
      std::span<const float> logits = {};         // [sequences of the run, vocabulary], or empty
    };
    std::vector<Started> runs;
    std::vector<Drawn> drawn;
    void clear() { runs.clear(), drawn.clear(); }
  };

  Run& run_of(std::int64_t singles, std::int64_t groups);
  std::int64_t most_groups() const;
  void move(const Scheduler::Plan& plan);
  void start(Step& step);
  void start(Step& step, std::span<const Scheduler::Part> singles, std::span<const Scheduler::Part> groups,
             Run& run);
  void wait(Step& step);
  void lose_steps();
  void report(const Drawn& drawn);
  [[noreturn]] void end_with(Handle sequence, const std::string& why);
  std::int64_t room_for(const std::vector<std::int32_t>& prompt, std::int64_t tokens) const;
  void advance(Beams& search);
  void remove(Handle sequence);

  LanguageModel model_;
  Options options_;
  std::source_location where_;
  Scheduler scheduler_;
  KvCache cache_;
  std::shared_ptr<SharedArena> arena_ = std::make_shared<SharedArena>();  // of all its programs
  std::int64_t vocabulary_ = 0;
  detail::Numbered<std::shared_ptr<Sequence>> sequences_;
  std::map<Handle, std::shared_ptr<Beams>> searches_;  // by their first beam
  std::optional<Parameter> last_;  // with Options::ahead, i32 [slots]: the tokens of the step started last
  std::map<std::pair<std::int64_t, std::int64_t>, std::unique_ptr<Run>> runs_;
  std::unique_ptr<Move> move_;
  // What is under way: tokens of `now_` from number `reported_` on have not been reported, and `next_`, if it
  // has runs, was started behind it. All programs and copies of an engine are on one stream.
  Step now_, next_;
  std::size_t reported_ = 0;
  double run_seconds_ = 0;
  bool stepping_ = false;
  std::atomic<std::thread::id> user_ = {};  // the thread that is in a call
};

}  // namespace tg::nn
