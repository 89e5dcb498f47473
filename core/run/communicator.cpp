#include <tilegrad/core/run/communicator.h>

#include <list>
#include <mutex>
#include <utility>

namespace tg {

struct Communicator::Listeners {
  std::mutex mutex;
  std::list<std::function<void()>> functions;
  bool is_lost = false;
};

Communicator::Communicator(int rank, int size)
    : rank_(rank), size_(size), listeners_(std::make_shared<Listeners>()) {}

std::shared_ptr<void> Communicator::on_lost(std::function<void()> f) {
  std::shared_ptr<void> registered;  // outlives the lock, because its destructor locks the same mutex
  const std::lock_guard lock(listeners_->mutex);
  const auto at = listeners_->functions.insert(listeners_->functions.end(), std::move(f));
  registered = {nullptr, [all = listeners_, at](void*) {
                  const std::lock_guard guard(all->mutex);
                  all->functions.erase(at);
                }};
  if (listeners_->is_lost) (*at)();
  return registered;
}

void Communicator::report_lost() {
  const std::lock_guard lock(listeners_->mutex);
  if (std::exchange(listeners_->is_lost, true)) return;
  for (const std::function<void()>& f : listeners_->functions) f();
}

}  // namespace tg
