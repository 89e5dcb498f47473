// Architecture: one kind of model, held by value; any struct of the form below can describe it.
// nn/models/llama.h is an example, with its settings, its checks and the parts that it makes.
#pragma once

#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <tilegrad/core/base/attrs.h>
#include <tilegrad/nn/models/model_parts.h>

namespace tg::nn {

struct ModelConfig;

// A setting as metadata of checkpoints and command lines name it.
struct Setting {
  std::string name = {};  // "key_heads", whose option is --key-heads
  std::variant<std::int64_t*, double*, bool*, std::string*, std::vector<std::int64_t>*, std::vector<double>*>
      value = {};
  const char* help = nullptr;  // null: tools have no option for it
  double min = -std::numeric_limits<double>::infinity(), max = std::numeric_limits<double>::infinity();
  std::string shown = {};  // the default as --help shows it, if not the value
  std::string after = {};  // the setting that precedes it in --help
  // The value, as metadata write it, of a file that does not name the setting; it is then not written either.
  // None: every file names it.
  std::optional<std::string> absent = {};
};

// Every setting of a struct with `void fields(auto&& field)`, which calls field(name, member) or field(name,
// member, Setting{.help = …}) for each. They point into the struct.
template <class T>
std::vector<Setting> settings_of(T& of) {
  std::vector<Setting> all;
  of.fields([&all](const char* name, auto& member, Setting setting = {}) {
    setting.name = name, setting.value = &member;
    all.push_back(std::move(setting));
  });
  return all;
}

// Made from any copyable struct with
//   static constexpr const char *name, *title;       "llama", in metadata and options; "Llama", in texts
//   void fields(auto&& field);                       the settings that only it has: see settings_of
//   ModelParts make(const Path&, const ModelConfig&) const;
// and, where it has something to add,
//   void check(const ModelConfig&) const;            throws ShapeError or Error for what does not fit
//   void complete(const ModelConfig&);               replaces settings that are 0 by the sizes they stand for
//   std::string text(const ModelConfig&) const;      ", 2 key heads", for ModelConfig::text()
class Architecture {
 public:
  Architecture();  // Gpt
  template <class Kind>
  requires requires { Kind::name, Kind::title; }
  Architecture(Kind kind) : kind_(std::make_unique<Of<Kind>>(std::move(kind))) {}
  Architecture(const Architecture& other) : kind_(other.kind_->clone()) {}  // moves copy: none is ever empty
  Architecture& operator=(Architecture other) noexcept {
    kind_ = std::move(other.kind_);
    return *this;
  }

  // What it was made from; null if that is of another kind.
  template <class Kind>
  const Kind* as() const {
    const bool is_kind = tg::detail::is_same_type(kind_->type(), tg::detail::TypeName<Kind>::get());
    return is_kind ? &static_cast<const Of<Kind>*>(kind_.get())->kind : nullptr;
  }
  std::string name() const { return kind_->name(); }
  std::string title() const { return kind_->title(); }
  std::vector<Setting> settings() { return kind_->settings(); }
  ModelParts make(const Path& at, const ModelConfig& c) const { return kind_->make(at, c); }
  void check(const ModelConfig& c) const { kind_->check(c); }
  void complete(const ModelConfig& c) { kind_->complete(c); }
  std::string text(const ModelConfig& c) const { return kind_->text(c); }

 private:
  struct Any {
    virtual ~Any() = default;
    virtual const char* type() const = 0;
    virtual std::unique_ptr<Any> clone() const = 0;
    virtual const char* name() const = 0;
    virtual const char* title() const = 0;
    virtual std::vector<Setting> settings() = 0;
    virtual ModelParts make(const Path&, const ModelConfig&) const = 0;
    virtual void check(const ModelConfig&) const = 0;
    virtual void complete(const ModelConfig&) = 0;
    virtual std::string text(const ModelConfig&) const = 0;
  };
  template <class Kind>
  struct Of final : Any {
    explicit Of(Kind k) : kind(std::move(k)) {}
    const char* type() const override { return tg::detail::TypeName<Kind>::get(); }
    std::unique_ptr<Any> clone() const override { return std::make_unique<Of>(kind); }
    const char* name() const override { return Kind::name; }
    const char* title() const override { return Kind::title; }
    std::vector<Setting> settings() override { return settings_of(kind); }
    ModelParts make(const Path& at, const ModelConfig& c) const override { return kind.make(at, c); }
    void check(const ModelConfig& c) const override {
      if constexpr (requires { kind.check(c); }) kind.check(c);
    }
    void complete(const ModelConfig& c) override {
      if constexpr (requires { kind.complete(c); }) kind.complete(c);
    }
    std::string text(const ModelConfig& c) const override {
      if constexpr (requires { kind.text(c); }) return kind.text(c);
      return {};
    }
    Kind kind;
  };
  std::unique_ptr<Any> kind_;
};

// The architectures that checkpoints and tools know by name: "gpt", "llama", "deepseek", each with its
// default settings. Adding one takes a file like nn/models/llama.h and a line in nn/models/model_config.cpp.
const std::vector<Architecture>& architectures();
// Throws Error for any other name.
Architecture architecture_named(std::string_view name);

}  // namespace tg::nn
