// ranks.cc - see ranks.h.
#include "ranks.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

namespace simgpu {

namespace {

constexpr long kLookEvery = 50 * 1000 * 1000; // ns between looks at whether the others are alive
constexpr int kSpins = 200;                   // before a sleep: the others are mostly near

// Since boot, in clock ticks; 0: there is no such process.
uint64_t StartOf(int pid) {
  char path[64], text[1024];
  std::snprintf(path, sizeof path, "/proc/%d/stat", pid);
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    return 0;
  const ssize_t length = read(fd, text, sizeof text - 1);
  close(fd);
  if (length <= 0)
    return 0;
  text[length] = '\0';
  const char *at = std::strrchr(text, ')'); // the name before it may hold anything
  // Field 3 is the state, field 22 the start.
  if (!at || at[1] != ' ' || at[2] == 'Z' || at[2] == 'X')
    return 0;
  at += 2;
  for (int field = 3; field < 22 && at; field++)
    at = std::strchr(at + 1, ' ');
  return at ? std::strtoull(at, nullptr, 10) : 0;
}

size_t Align(size_t bytes) {
  return (bytes + 4095) & ~static_cast<size_t>(4095);
}

size_t StagesAt() {
  return Align(sizeof(Shared));
}
size_t BoxesAt() {
  return StagesAt() + 2 * kMaxRanks * kStage;
}
// Most of it is never touched, and takes nothing.
size_t Size() {
  return BoxesAt() + kMaxRanks * kMaxRanks * Align(sizeof(Mailbox));
}

} // namespace

bool Ranks::Identify(Identity *out) {
  static std::atomic<uint64_t> number{0};
  const int fd = static_cast<int>(syscall(SYS_memfd_create, "simgpu-ranks", 1U /* MFD_CLOEXEC */));
  if (fd < 0 || ftruncate(fd, static_cast<off_t>(Size()))) {
    std::fprintf(stderr, "simgpu: no memory to be shared between ranks: %s\n", std::strerror(errno));
    if (fd >= 0)
      close(fd);
    return false;
  }
  out->pid = getpid();
  out->fd = fd;
  out->started = StartOf(out->pid);
  out->number = ++number;
  return true;
}

Ranks *Ranks::Join(const Identity &identity, size_t count, size_t mine) {
  if (count > kMaxRanks || mine >= count) {
    std::fprintf(stderr, "simgpu: rank %zu of %zu: there can be %zu ranks at most\n", mine, count, kMaxRanks);
    return nullptr;
  }
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%d/fd/%d", identity.pid, identity.fd);
  const bool own = identity.pid == getpid();
  const bool there = StartOf(identity.pid) == identity.started;
  const int fd = own ? identity.fd : there ? open(path, O_RDWR | O_CLOEXEC) : -1;
  void *at = fd < 0 ? MAP_FAILED : mmap(nullptr, Size(), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) {
    std::fprintf(stderr, "simgpu: rank %zu cannot join process %d: %s\n", mine, identity.pid,
                 there ? std::strerror(errno) : "it has ended");
    if (fd >= 0)
      close(fd);
    return nullptr;
  }
  Ranks *ranks = new Ranks(static_cast<Shared *>(at), Size(), fd, count, mine);
  Place &place = ranks->shared_->place[mine];
  place.started = StartOf(getpid());
  place.pid = getpid();
  ranks->Ring();
  Shared *shared = ranks->shared_;
  // A rank that has not come yet cannot be seen to have died: only the one that invited can.
  auto all_there = [shared, count] {
    for (size_t i = 0; i < count; i++)
      if (!shared->place[i].pid)
        return false;
    return true;
  };
  while (!all_there()) {
    const uint32_t bell = shared->bell.load();
    if (!all_there() && !ranks->Sleep(bell)) {
      delete ranks;
      return nullptr;
    }
    if (StartOf(identity.pid) != identity.started && !all_there()) {
      std::fprintf(stderr, "simgpu: rank %zu waits for others, but process %d has ended\n", mine, identity.pid);
      delete ranks;
      return nullptr;
    }
  }
  return ranks;
}

Ranks::~Ranks() {
  shared_->place[mine_].left = true;
  Ring();
  munmap(shared_, bytes_);
  close(fd_);
}

char *Ranks::Stage() {
  return reinterpret_cast<char *>(shared_) + StagesAt() + (2 * mine_ + (shown_ + 1) % 2) * kStage;
}

const char *Ranks::Seen(size_t rank) const {
  return reinterpret_cast<const char *>(shared_) + StagesAt() + (2 * rank + shown_ % 2) * kStage;
}

Mailbox *Ranks::Box(size_t from, size_t to) const {
  char *boxes = reinterpret_cast<char *>(shared_) + BoxesAt();
  return reinterpret_cast<Mailbox *>(boxes + (from * kMaxRanks + to) * Align(sizeof(Mailbox)));
}

bool Ranks::Show(const Deed &deed) {
  // Two stages in turn: when all have shown for the n-th time, all have read what was shown before.
  const uint64_t now = ++shown_;
  Place *places = shared_->place;
  places[mine_].deed[now % 2] = deed;
  places[mine_].shown.store(now);
  Ring();
  auto all_shown = [&] {
    for (size_t i = 0; i < count_; i++)
      if (places[i].shown.load() < now)
        return false;
    return true;
  };
  if (!Await(all_shown))
    return false;
  for (size_t i = 0; i < count_; i++) {
    const Deed &other = places[i].deed[now % 2];
    if (std::memcmp(&other, &deed, sizeof deed) == 0)
      continue;
    shared_->broken = 1;
    Ring();
    std::fprintf(
        stderr,
        "simgpu: the ranks are not doing the same: rank %zu operation %d type %d reduction %d root %d count %llu, "
        "rank %zu operation %d type %d reduction %d root %d count %llu\n",
        mine_, deed.what, deed.type, deed.reduce, deed.root, static_cast<unsigned long long>(deed.count), i, other.what,
        other.type, other.reduce, other.root, static_cast<unsigned long long>(other.count));
    return false;
  }
  return true;
}

void Ranks::Ring() {
  shared_->bell.fetch_add(1);
  syscall(SYS_futex, &shared_->bell, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

bool Ranks::Alive(size_t rank) const {
  const Place &place = shared_->place[rank];
  return !place.pid || (!place.left && StartOf(place.pid) == place.started);
}

bool Ranks::Sleep(uint32_t bell) {
  for (int i = 0; i < kSpins; i++) {
    if (shared_->bell.load() != bell)
      return true;
    sched_yield();
  }
  const timespec until = {0, kLookEvery};
  if (syscall(SYS_futex, &shared_->bell, FUTEX_WAIT, bell, &until, nullptr, 0) == 0 || errno != ETIMEDOUT)
    return true;
  if (shared_->broken)
    return false;
  for (size_t i = 0; i < count_; i++) {
    if (i == mine_ || Alive(i))
      continue;
    std::fprintf(stderr, "simgpu: rank %zu waits for rank %zu, which is gone\n", mine_, i);
    return false;
  }
  return true;
}

} // namespace simgpu
