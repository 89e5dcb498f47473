// KvCache stores the keys and values of the tokens that a model has read. For each further token, layers then
// compute only one row; only attention reads the whole cache. The tensors of the cache are parameters, which
// programs extend at the end of a run. CacheCall is the interface of a cache for a model's layers.
#pragma once

#include <map>
#include <optional>

#include <tilegrad/core/compile/compile.h>
#include <tilegrad/ops/paged_attn.h>

namespace tg::nn {

// Storage for the keys and values of all layers.
class KvCache {
 public:
  // `pages` pages of `page_size` tokens each. Either every sequence has one page, which limits its length, or
  // sequences have many small pages from a PagePool. Tensors are allocated, as zeros, when the first graph
  // extends them. Keys and values are stored, and attention is computed, in `dtype`; default: the dtype of
  // the first keys and values. Throws ShapeError for sizes that are not positive, and DTypeError for a dtype
  // that is not floating.
  KvCache(std::int64_t pages, std::int64_t page_size, Device device = Device::cpu(),
          std::optional<DType> dtype = {});
  KvCache(const KvCache&) = delete;
  KvCache& operator=(const KvCache&) = delete;

  // The number of pages.
  std::int64_t pages() const { return pages_; }
  // Tokens per page.
  std::int64_t page_size() const { return page_size_; }
  // Memory of the allocated tensors in bytes.
  std::size_t bytes() const;
  // The tensors by layer and kind: [pages·page_size, heads, n], one row per token.
  const std::map<std::string, Parameter>& tensors() const { return tensors_; }

 private:
  friend class CacheCall;
  std::int64_t pages_, page_size_;
  Device device_;
  std::optional<DType> dtype_;
  std::map<std::string, Parameter> tensors_;
};

// One call of a model on tokens that follow those in a cache. Attention layers append to the cache and read
// all of it. The number of cached tokens is an input, so one program can be used for every position in every
// sequence.
class CacheCall {
 public:
  // For a cache with one page per sequence: each sequence has `length` new tokens. Adds the input "cached" to
  // the graph (i32 [sequences]). A run in which a sequence exceeds its page fails with an Error. Throws
  // ShapeError for a length outside 1 … page_size.
  CacheCall(Graph& graph, KvCache& cache, std::int64_t length);
  // The size of a call on a paged cache. Each row of x [singles + groups · length, 1, …] is one token. The
  // first `singles` rows are single tokens, each the last token of its sequence. They are followed by
  // `groups` groups of `length` consecutive tokens. Several groups may belong to one sequence; they see the
  // tokens of its earlier groups.
  struct InPages {
    std::int64_t singles = 0, groups = 0;  // number of single tokens and of groups
    std::int64_t length = 1;               // tokens per group
    std::int64_t room = 1;                 // maximum number of pages per sequence
  };
  // For a paged cache. Rows whose tokens are already in the cache, and padding rows, are not written. Adds
  // inputs to the graph: "rows" and "positions" (i32 [singles + groups · length, 1]), "lengths" (i32 [singles
  // + groups]) and "table" (i32 [singles + groups, `room` pages]). A token's results are bitwise independent
  // of the rest of the batch (paged_attn). Throws ShapeError for a negative number, a call without rows, and
  // a length or a room that is not positive.
  CacheCall(Graph& graph, KvCache& cache, const InPages& call);

  // The input of a cache with one page per sequence: the number of cached tokens, i32 [sequences].
  const Tensor& cached() const { return cached_; }
  // An input of a paged cache: for each token, its cache row, page·page_size + offset, or −1 to write
  // none.
  const Tensor& rows() const { return rows_; }
  // An input of a paged cache: for each single token and each group, the number of tokens in its sequence up
  // to its last token.
  const Tensor& lengths() const { return lengths_; }
  // An input of a paged cache: for each single token and each group, the pages of its sequence that contain
  // these tokens.
  const Tensor& table() const { return table_; }

  // The positions of the new tokens in their sequences, i32 [sequences, length]. For a paged cache, an
  // input to be fed, with 0 for padding rows.
  const Tensor& positions() const { return positions_; }

  // Throws ShapeError unless x is [sequences, length, …] with the sizes of the call, and Error if ranks
  // divide sequences.
  void check(TensorArg x) const;
  // Appends keys [sequences, Hk, length, d] and values [sequences, Hk, length, dv] to the cache's tensors
  // name + ".k" and ".v". Then computes attention: each query [sequences, H, length, d] sees the keys of its
  // sequence up to its own position. Returns o [sequences, H, length, dv] in q's dtype. Throws ShapeError or
  // DTypeError for tensors that do not fit the call or the cache.
  Tensor attend(const std::string& name, TensorArg q, TensorArg k, TensorArg v,
                const PagedAttentionOptions& options = {});
  // As above, but the first `value_width` elements (1 … d) of each key are also its value. They are stored
  // only once, under `name`.
  Tensor attend(const std::string& name, TensorArg q, TensorArg k, std::int64_t value_width,
                const PagedAttentionOptions& options = {});
  // The assignments of the appended rows, for CompileOptions::assign. If a program computes attend() without
  // them, compile() throws Error.
  const std::vector<Assign>& assign() const { return assign_; }

 private:
  // All rows of the cache's tensor of this name, and new rows [sequences, length, heads, n] to be stored
  // there.
  struct Rows {
    Parameter held;
    Tensor added;
  };
  Rows rows_of(const std::string& name, const TensorArg& in);
  std::vector<Tensor> append(const std::vector<Rows>& tensors);
  Tensor attention(const Tensor& in, const Tensor& k, const Tensor& v, const PagedAttentionOptions& o) const;
  Tensor attention_in_pages(const Tensor& q, const Tensor& k, const Tensor& v,
                            const PagedAttentionOptions& o) const;

  KvCache& cache_;
  InPages parts_ = {};  // for paged cache
  Tensor cached_, rows_, lengths_, table_, positions_;
  std::vector<Assign> assign_;
};

}  // namespace tg::nn
