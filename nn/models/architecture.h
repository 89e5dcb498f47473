// Architecture: a kind of model, held by value. Any struct of the form below can describe one.
// nn/models/llama.h is an example with settings, checks and the parts that it creates.
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

// A setting of a model, with its name in checkpoint metadata and on command lines.
struct Setting {
  std::string name = {};  // such as "key_heads", whose option is --key-heads
  // The member that stores the value.
  std::variant<std::int64_t*, double*, bool*, std::string*, std::vector<std::int64_t>*, std::vector<double>*>
      value = {};
  const char* help = nullptr;  // --help text; null: tools have no option for it
  // The range of a numeric value.
  double min = -std::numeric_limits<double>::infinity(), max = std::numeric_limits<double>::infinity();
  std::string shown = {};  // default as shown by --help, if not the value itself
  std::string after = {};  // name of the setting that precedes it in --help
  // The value, in metadata format, that is used if a file lacks this setting. A setting with this value is
  // not written. None: every file must contain the setting.
  std::optional<std::string> absent = {};
};

// Returns every setting of a struct with `void fields(auto&& field)`, which calls field(name, member) or
// field(name, member, Setting{.help = …}) for each. The settings point into the struct.
template <class T>
std::vector<Setting> settings_of(T& of) {
  std::vector<Setting> all;
  of.fields([&all](const char* name, auto& member, Setting setting = {}) {
    setting.name = name, setting.value = &member;
    all.push_back(std::move(setting));
  });
  return all;
}

// A kind of model, made from any copyable struct with
//    static constexpr const char *name, *title;       "llama", in metadata and options; "Llama", in messages
//    void fields(auto&& field);                       its own settings: see settings_of
//    ModelParts make(const Path&, const ModelConfig&) const;
// and, if needed,
//    void check(const ModelConfig&) const;            throws ShapeError or Error for invalid settings
//    void complete(const ModelConfig&);               replaces settings that are 0 by their default sizes
//    std::string text(const ModelConfig&) const;      ", 2 key heads", for ModelConfig::text()
class Architecture {
 public:
  // GPT-2's architecture with default settings.
  Architecture();
  // Holds a copy of `kind`.
  template <class Kind>
  requires requires { Kind::name, Kind::title; }
  Architecture(Kind kind) : kind_(std::make_unique<Of<Kind>>(std::move(kind))) {}
  // Copies the held struct. A move also copies, so that no object is ever empty.
  Architecture(const Architecture& other) : kind_(other.kind_->clone()) {}
  // Replaces the held struct by a copy.
  Architecture& operator=(Architecture other) noexcept {
    kind_ = std::move(other.kind_);
    return *this;
  }

  // Returns the held struct, or null if it has a different type.
  template <class Kind>
  const Kind* as() const {
    const bool is_kind = tg::detail::is_same_type(kind_->type(), tg::detail::TypeName<Kind>::get());
    return is_kind ? &static_cast<const Of<Kind>*>(kind_.get())->kind : nullptr;
  }
  // The name in metadata and options: "llama".
  std::string name() const { return kind_->name(); }
  // The name in messages: "Llama".
  std::string title() const { return kind_->title(); }
  // Returns the settings of the held struct. They point into it.
  std::vector<Setting> settings() { return kind_->settings(); }
  // Creates the layers of a model on `at`.
  ModelParts make(const Path& at, const ModelConfig& c) const { return kind_->make(at, c); }
  // Throws ShapeError or Error if the settings do not fit the configuration.
  void check(const ModelConfig& c) const { kind_->check(c); }
  // Replaces settings that are 0 by their default sizes.
  void complete(const ModelConfig& c) { kind_->complete(c); }
  // Returns a description of the settings for ModelConfig::text().
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

// The architectures that checkpoints and tools know by name: "gpt", "llama" and "deepseek", each with its
// default settings. A new one needs a file like nn/models/llama.h and a line in nn/models/model_config.cpp.
const std::vector<Architecture>& architectures();
// Returns the architecture with this name and its default settings. Throws Error for any other name.
Architecture architecture_named(std::string_view name);

}  // namespace tg::nn
