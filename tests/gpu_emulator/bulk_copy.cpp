#include "tests/gpu_emulator/bulk_copy.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/gpu_emulator/block.h"
#include "tests/gpu_emulator/early_reads.h"
#include "tests/gpu_emulator/mbarrier.h"
#include "tests/gpu_emulator/recorder.h"
#include "tests/gpu_emulator/shadow.h"

namespace {

constexpr std::uint64_t made_by_encode = 0x54656e736f724d70;

std::uint32_t swizzle_bytes(std::uint32_t mode) {
  return mode == CU_TENSOR_MAP_SWIZZLE_NONE ? 0 : 16u << mode;
}

}  // namespace

// Refuses arguments that the driver's documentation does not allow.
CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* data,
                                const cuuint64_t* size, const cuuint64_t* stride, const cuuint32_t* box,
                                const cuuint32_t* step, CUtensorMapInterleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill) {
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  bool good =
      map && reinterpret_cast<std::uintptr_t>(map) % 64 == 0 && data && address % 16 == 0 && rank == 4;
  for (unsigned n = 0; good && n < 4; ++n) {
    good = size[n] > 0 && size[n] <= std::uint64_t{1} << 32 && box[n] > 0 && box[n] <= 256 && step[n] == 1;
    if (n > 0)
      good = good && stride[n - 1] > 0 && stride[n - 1] % 16 == 0 && stride[n - 1] < std::uint64_t{1} << 40;
  }
  const std::uint32_t inner = good ? box[0] * 2 : 0;
  if (!good || inner % 16 != 0 || (swizzle != CU_TENSOR_MAP_SWIZZLE_NONE && inner > swizzle_bytes(swizzle)))
    return CUDA_ERROR_INVALID_VALUE;
  if (tg::emulator::only_records()) {
    std::string line = "a map of type " + std::to_string(type) + " swizzle " + std::to_string(swizzle) +
                       " promotion " + std::to_string(promotion);
    for (unsigned n = 0; n < 4; ++n)
      line += " axis " + std::to_string(size[n]) + " box " + std::to_string(box[n]) + " stride " +
              std::to_string(n > 0 ? stride[n - 1] : 2);
    tg::emulator::record(line);
  }
  *map = {made_by_encode,
          static_cast<const unsigned char*>(data),
          {},
          {},
          {},
          static_cast<std::uint32_t>(swizzle)};
  std::copy(size, size + 4, map->size);
  std::copy(box, box + 4, map->box);
  map->stride[0] = 2;
  std::copy(stride, stride + 3, map->stride + 1);
  return CUDA_SUCCESS;
}

namespace tg::emulator {

namespace {

[[noreturn]] void fail(const std::string& what) {
  give_up("thread " + std::to_string(here.number) + ": " + what);
}
void insist_on_shared(std::uint32_t to, std::size_t bytes, unsigned alignment) {
  const auto offset = static_cast<std::size_t>(shared_pointer(to) - dynamic_shared(block_of(to)));
  if (offset + bytes > shared_size()) fail("a bulk copy beyond the block's shared memory");
  if (to % alignment != 0)
    fail("a bulk copy to an address that is not a multiple of " + std::to_string(alignment));
}

// The part of a box's row that is inside the tensor. The row starts at coordinates c. The part starts at byte
// `skipped` of the row. It has `bytes` bytes at address `data`.
struct RowInTensor {
  const unsigned char* data;
  std::size_t skipped, bytes;
};
RowInTensor row_in_tensor(const CUtensorMap& map, const std::array<std::int64_t, 4>& c) {
  const unsigned char* data = map.data;
  for (unsigned n = 1; n < 4; ++n) {
    if (c[n] < 0 || c[n] >= static_cast<std::int64_t>(map.size[n])) return {nullptr, 0, 0};
    data += c[n] * static_cast<std::int64_t>(map.stride[n]);
  }
  const std::int64_t first = std::max<std::int64_t>(c[0], 0),
                     last = std::min(c[0] + map.box[0], static_cast<std::int64_t>(map.size[0]));
  if (first >= last) return {nullptr, 0, 0};
  return {data + first * 2, static_cast<std::size_t>(first - c[0]) * 2,
          static_cast<std::size_t>(last - first) * 2};
}

// A swizzle permutes pieces of 16 bytes. The permutation depends on bits of the address: bits 7 … 9 for the
// 128-byte swizzle.
std::uint32_t swizzled(std::uint32_t address, std::uint32_t bytes) {
  return bytes == 0 ? address : address ^ (address >> 3 & (bytes - 16));
}

// Calls f(address in shared memory, row in the tensor) for each row of a box.
template <class F>
void for_each_row(const CUtensorMap& map, std::uint32_t address, BoxPlace at, F&& f) {
  for (unsigned b = 0; b < map.box[3]; ++b)
    for (unsigned h = 0; h < map.box[2]; ++h)
      for (unsigned r = 0; r < map.box[1]; ++r, address += map.box[0] * 2)
        f(address, row_in_tensor(map, {at.x, std::int64_t{at.row} + r, std::int64_t{at.head} + h,
                                       std::int64_t{at.batch} + b}));
}

// Elements outside the tensor are zero.
void write_box(const CUtensorMap& map, std::uint32_t to, BoxPlace at) {
  const std::uint32_t inner = map.box[0] * 2, pitch = swizzle_bytes(map.swizzle);
  unsigned char row[512];
  for_each_row(map, to, at, [&](std::uint32_t address, const RowInTensor& from) {
    std::memset(row, 0, inner);
    if (from.bytes > 0) std::memcpy(row + from.skipped, from.data, from.bytes);
    for (std::uint32_t n = 0; n < inner; n += 16)
      std::memcpy(shared_pointer(swizzled(address + n, pitch)), row + n, 16);
  });
}

void read_box(const CUtensorMap& map, std::uint32_t from, BoxPlace at) {
  const std::uint32_t inner = map.box[0] * 2, pitch = swizzle_bytes(map.swizzle);
  unsigned char row[512];
  for_each_row(map, from, at, [&](std::uint32_t address, const RowInTensor& to) {
    for (std::uint32_t n = 0; n < inner; n += 16)
      std::memcpy(row + n, shared_pointer(swizzled(address + n, pitch)), 16);
    if (to.bytes == 0) return;
    std::memcpy(const_cast<unsigned char*>(to.data), row + to.skipped, to.bytes);
    if (tracks_writes) note_global(to.data, to.bytes, true);
  });
}

struct Store {
  int thread;
  CUtensorMap map;
  std::uint32_t from;
  BoxPlace to;
  bool committed = false;
};
std::vector<Store> stores;

}  // namespace

void copy_box(std::uint32_t to, const CUtensorMap& map, std::uint32_t barrier, BoxPlace from) {
  if (map.mark != made_by_encode) fail("a copy by a tensor map that cuTensorMapEncodeTiled has not made");
  const std::uint32_t bytes = map.box[0] * 2 * map.box[1] * map.box[2] * map.box[3];
  insist_on_shared(to, bytes, 128);
  if (tracks_writes && is_before_wait())
    for_each_row(map, to, from,
                 [](std::uint32_t, const RowInTensor& row) { note_global(row.data, row.bytes, false); });
  copy_by(barrier, to, static_cast<int>(bytes), [=] { write_box(map, to, from); });
}

void copy_box_to_each(unsigned blocks, std::uint32_t to, const CUtensorMap& map, std::uint32_t barrier,
                      BoxPlace from) {
  if (blocks > cluster_blocks) fail("a bulk copy to more blocks than the cluster has");
  for (unsigned rank = 0; rank < blocks; ++rank)
    copy_box(shared_of(to, rank), map, shared_of(barrier, rank), from);
}

void store_box(const CUtensorMap& map, std::uint32_t from, BoxPlace to) {
  if (map.mark != made_by_encode) fail("a copy by a tensor map that cuTensorMapEncodeTiled has not made");
  const std::uint32_t bytes = map.box[0] * 2 * map.box[1] * map.box[2] * map.box[3];
  insist_on_shared(from, bytes, 128);
  note_store(shared_pointer(from), static_cast<int>(bytes));
  stores.push_back({here.number, map, from, to});
}
void commit_stores() {
  for (Store& x : stores)
    if (x.thread == here.number) x.committed = true;
}
void wait_for_stores() {
  std::erase_if(stores, [](const Store& x) {
    if (x.thread != here.number || !x.committed) return false;
    read_box(x.map, x.from, x.to);
    return true;
  });
}
void forget_stores() {
  stores.clear();
}
void insist_on_no_stores() {
  if (!stores.empty())
    throw std::runtime_error("the block has ended, but a thread has not waited for its stores");
}

void copy_bytes(std::uint32_t to, const void* from, int bytes, std::uint32_t barrier) {
  if (bytes <= 0 || bytes % 16 != 0 || reinterpret_cast<std::uintptr_t>(from) % 16 != 0)
    fail("a bulk copy of " + std::to_string(bytes) +
         " bytes, or from an address, that is not a multiple of 16");
  insist_on_shared(to, static_cast<std::size_t>(bytes), 16);
  unsigned char* const at = shared_pointer(to);
  if (tracks_writes) note_global(from, static_cast<std::size_t>(bytes), false);
  copy_by(barrier, to, bytes, [=] { std::memcpy(at, from, static_cast<std::size_t>(bytes)); });
}

void copy_shared(std::uint32_t to, std::uint32_t from, int bytes, std::uint32_t barrier) {
  if (bytes <= 0 || bytes % 16 != 0)
    fail("a bulk copy of " + std::to_string(bytes) + " bytes, which is not a multiple of 16");
  insist_on_shared(from, static_cast<std::size_t>(bytes), 16);
  insist_on_shared(to, static_cast<std::size_t>(bytes), 16);
  const unsigned char* const data = shared_pointer(from);
  unsigned char* const at = shared_pointer(to);
  copy_by(
      barrier, to, bytes, [=] { std::memcpy(at, data, static_cast<std::size_t>(bytes)); }, data);
}

}  // namespace tg::emulator
