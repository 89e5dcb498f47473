#include <tilegrad/io/files/mapped_file.h>

#include <utility>

#include <tilegrad/core/base/error.h>
#include "core/os/file.h"
#include "io/files/input_file.h"

namespace tg::io {
namespace {

struct Mapping final : MappedFile::Pages {
  Mapping(const std::string& path, std::string_view who) : file(path, who) {
    if (file.size() == 0) file.fail("it is empty");
    check_file(who, "read", path, memory.map(file.descriptor(), static_cast<std::size_t>(file.size())));
  }

  // Compares sizes, because a truncation within the last page causes no signal: the rest of that page reads
  // as zeros.
  void check() const override {
    if (const std::uint64_t size = file.status().size; size < file.size())
      file.fail("it shrank while it was read, from " + std::to_string(file.size()) + " to " +
                std::to_string(size) + " bytes");
    if (memory.is_part_lost())
      file.fail("a part was lost while it was read; was the file truncated, or does its disk fail?");
  }

  InputFile file;
  os::MappedMemory memory;
};

}  // namespace

MappedFile::MappedFile(const std::string& path, std::string_view who) {
  const auto mapping = std::make_shared<const Mapping>(path, who);
  bytes_ = {mapping->memory.data(), static_cast<std::size_t>(mapping->file.size())};
  pages_ = mapping;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : pages_(std::move(other.pages_)), bytes_(std::exchange(other.bytes_, {})) {}

void MappedFile::release(std::size_t offset, std::size_t bytes) const {
  if (offset <= bytes_.size() && bytes <= bytes_.size() - offset)
    os::release_pages(bytes_.data() + offset, bytes);
}

void MappedFile::read(std::size_t offset, std::span<std::byte> to) const {
  if (!pages_) throw Error("cannot read a mapped file that was moved");
  const InputFile& file = static_cast<const Mapping&>(*pages_).file;
  if (const std::size_t read = file.read_at(offset, to); read < to.size())
    file.fail("it ends at byte " + std::to_string(offset + read));
}

}  // namespace tg::io
