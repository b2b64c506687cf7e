#pragma once

#include <cstddef>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

namespace moesim {

// Values by key, each made once for all threads that ask for it, of at most so many bytes together:
// those asked for longest ago are forgotten first, but never the last one. A value that someone
// holds lives on; asked for again it is made again. Value::bytes() says what it takes. May be used
// by several threads.
template <class Key, class Value>
class BoundedCache {
 public:
  using Held = std::shared_ptr<const Value>;

  explicit BoundedCache(std::size_t most_bytes) : most_bytes_(most_bytes) {}
  BoundedCache(const BoundedCache&) = delete;  // of a mutex
  BoundedCache& operator=(const BoundedCache&) = delete;

  // Throws what `make` throws; the next one to ask then calls its own.
  Held get(const Key& key, const std::function<Held()>& make) {
    const std::shared_ptr<Entry> entry = used(key);
    std::call_once(entry->once, [&] {
      entry->value = make();
      keep(key, entry);
    });
    return entry->value;
  }

  std::size_t bytes() const {
    const std::lock_guard lock(mutex_);
    return bytes_;
  }

 private:
  struct Entry {
    std::once_flag once;
    Held value;
    std::size_t bytes = 0;  // 0: not made yet
    typename std::list<Key>::iterator turn;
  };

  std::shared_ptr<Entry> used(const Key& key) {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<Entry>& entry = entries_[key];
    if (entry) {
      turns_.splice(turns_.end(), turns_, entry->turn);
    } else {
      entry = std::make_shared<Entry>();
      entry->turn = turns_.insert(turns_.end(), key);
    }
    return entry;
  }

  void keep(const Key& key, const std::shared_ptr<Entry>& entry) {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(key);
    if (found == entries_.end() || found->second != entry) return;
    entry->bytes = entry->value->bytes();
    bytes_ += entry->bytes;
    // Those that are being made have no bytes to give back.
    for (auto turn = turns_.begin(); bytes_ > most_bytes_ && turn != turns_.end();) {
      const auto oldest = entries_.find(*turn);
      if (oldest->second->bytes == 0 || oldest->second == entry) {
        ++turn;
        continue;
      }
      bytes_ -= oldest->second->bytes;
      entries_.erase(oldest);
      turn = turns_.erase(turn);
    }
  }

  std::size_t most_bytes_;
  mutable std::mutex mutex_;
  std::size_t bytes_ = 0;
  std::map<Key, std::shared_ptr<Entry>> entries_;
  std::list<Key> turns_;  // the one asked for longest ago first
};

}  // namespace moesim
