// Engine: continuous batching of many sequences. Sequences join and leave at any step. Keys and values are
// stored in the pages of one cache [Stratos, PagedAttention]. Sequences with a common prefix share pages. If
// pages run out, the sequence that joined last waits until pages are free.
//
// A sequence's output depends only on its request. It is independent of the other sequences in the batch, the
// time it joined, the page size, and preemption.
//
// Threads: only one thread at a time may call functions of an Engine. They throw Error if another thread is
// inside a call. Several engines may share a model's parameters.
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

// Generates tokens for many sequences at the same time.
class Engine {
 public:
  // Options of an engine.
  struct Options {
    std::int64_t slots = 16;        // maximum number of sequences per step
    std::int64_t cache_tokens = 0;  // capacity of the cache in tokens; 0: a full context for each slot
    std::int64_t page_size = 16;    // tokens per page
    std::int64_t chunk = 256;       // maximum number of prompt tokens per step
    // Host memory for the cache of preempted sequences, in tokens; 0: preempted sequences are recomputed.
    std::int64_t host_tokens = 0;
    int threads = 0;                        // 0: all cores of the machine
    Precision precision = Precision::full;  // of layers; see Autocast
    std::optional<DType> cache_dtype = {};  // of cached keys and values; default: the computed dtype
    // Start a step before the previous step's tokens are known, unless a beam search is running. The tokens
    // stay on the device, so the device never waits for the host. A sequence that ends has then run one extra
    // step, whose token is not used. The output is the same. Default: true on a GPU. Default on a CPU: false,
    // because it has no benefit there.
    std::optional<bool> ahead = {};
  };
  // Identifies a sequence or a search; never reused.
  using Handle = std::uint64_t;
  // Why a sequence ends.
  enum class End {
    no,     // it continues
    count,  // it has the requested number of tokens
    token   // an end token was generated
  };
  // A generated token, as reported.
  struct Token {
    Handle sequence;     // the sequence
    std::int32_t token;  // id of the token
    End end;             // `no`, or the reason why this is the sequence's last token
    // If Request::logits is set: the logits [vocabulary] from which the token was chosen, valid during the
    // call.
    std::span<const float> logits;
  };
  // A sequence to generate.
  struct Request {
    std::vector<std::int32_t> prompt;     // at least one token
    std::int64_t tokens = 0;              // maximum number of new tokens; 0: up to the context length
    Sampling sampling = {};               // how tokens are chosen
    std::uint64_t seed = 1;               // of the random numbers; each depends on it and the token's index
    std::vector<std::int32_t> ends = {};  // end tokens: any of them ends the sequence
    bool logits = false;                  // report logits, which are copied from the device
    // Called for each token; false ends the sequence. It may add, fork and cancel sequences, but must not
    // call step(). step() rethrows its exceptions, and the next step continues after the reported token.
    std::function<bool(const Token&)> report = {};
  };

  // A beam search: the `beams` likeliest continuations of a prompt are kept after each token. They share the
  // pages of common tokens. Each occupies a slot.
  struct Search {
    std::vector<std::int32_t> prompt;                          // at least one token
    std::int64_t tokens = 0;                                   // as in Request
    std::int64_t beams = 4;                                    // number of continuations
    std::vector<std::int32_t> ends = {};                       // end tokens: any of them ends a continuation
    std::function<void(std::vector<Hypothesis>)> report = {};  // called once, likeliest first
  };

  // Allocates the cache. Parameters are read at every run. Layers that combine tokens must read earlier
  // tokens from the call's cache. Throws Error for a flash_attn that does not use the cache. Throws
  // ShapeError for options that are not positive, and OutOfMemory if the cache does not fit. Errors of the
  // model's runs name the source line of this call.
  Engine(LanguageModel model, const Options& options,
         const std::source_location& where = std::source_location::current());
  // Ends all sequences without a report.
  ~Engine();

  // Compiles all programs that steps may need, and runs each program once without a sequence. If prepare() is
  // not called, a step compiles each program when it first needs it.
  void prepare();

  // Adds a sequence. Throws Error if the prompt is empty, if a token is outside the vocabulary, or if a
  // sampling option is out of range. Also throws Error if the tokens do not fit into the context or into the
  // whole cache.
  Handle add(Request request);
  // Starts a beam search. Throws the errors of add(). Also throws Error if there are more beams than slots,
  // or if the whole cache cannot store all beams without sharing.
  Handle search(Search request);
  // Adds a copy of a sequence with its tokens so far. The copy draws separate random numbers.
  Handle fork(Handle sequence, std::uint64_t seed, std::function<bool(const Token&)> report = {});
  // Ends a sequence or a search without further reports. Does nothing if it has already ended.
  void cancel(Handle sequence);

  // Generates one token for each sequence that occupies a slot and whose prompt has been read. Returns
  // whether any sequence or search is left. If the run throws, all sequences keep their tokens and are
  // recomputed. If all logits of a sequence or a search are NaN, ends it and throws Error. The others
  // continue.
  bool step();
  // Calls step() until no sequence is left.
  void run() {
    while (step()) {
    }
  }

  // Call it after the weights have changed. Sequences that join later then use no results of the old weights.
  // With Options::ahead, the next step has already been computed with the old weights.
  void forget();

  // The number of sequences, including each beam of a search.
  std::size_t sequences() const { return sequences_.size(); }
  // The scheduler, for statistics.
  const Scheduler& scheduler() const { return scheduler_; }
  // The cache of keys and values.
  const KvCache& cache() const { return cache_; }
  // The memory of intermediate results, shared by all programs.
  const SharedArena& arena() const { return *arena_; }
  // The number of logits per token.
  std::int64_t vocabulary() const { return vocabulary_; }
  // Seconds that all steps so far have spent in the model's runs, including the wait for their results. The
  // host needs the rest of a step's time.
  double run_seconds() const { return run_seconds_; }

 private:
  struct Sequence;
  struct Beams;  // a search
  struct Run;    // a program for a number of single tokens and of prompt groups
  struct Move;   // a program that moves rows of the cache
  // The source of a sequence's next token: row `row` of the step's run `run`.
  struct Drawn {
    Handle sequence;
    std::size_t run;
    std::int64_t row;
  };
  // The runs of a started step.
  struct Step {
    struct Started {
      Run* run;
      Pending values;
      bool has_logits;  // `values` contains logits
      // Set once the run has finished.
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
  std::shared_ptr<SharedArena> arena_ = std::make_shared<SharedArena>();  // shared by all programs
  std::int64_t vocabulary_ = 0;
  detail::Numbered<std::shared_ptr<Sequence>> sequences_;
  std::map<Handle, std::shared_ptr<Beams>> searches_;  // by their first beam
  std::optional<Parameter> last_;  // with Options::ahead, i32 [slots]: the tokens of the latest step
  std::map<std::pair<std::int64_t, std::int64_t>, std::unique_ptr<Run>> runs_;
  std::unique_ptr<Move> move_;
  // Runs in flight. Tokens of `now_` starting at index `reported_` have not been reported. `next_`, if it has
  // runs, was started after `now_`. All programs and copies of an engine use one stream.
  Step now_, next_;
  std::size_t reported_ = 0;
  double run_seconds_ = 0;
  bool stepping_ = false;
  std::atomic<std::thread::id> user_ = {};  // the thread that is inside a call
};

}  // namespace tg::nn
