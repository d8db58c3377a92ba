// ranks.h - what the ranks of one communicator share: a piece of memory with a place for each rank, and waiting for one
// another without waiting for the dead. Knows nothing of Paddle, of devices or of what is sent.
//
// The memory is an anonymous file of the rank that made the identity, which the others open through that process: no
// name, so nothing is left behind however the ranks end.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace simgpu {

constexpr size_t kMaxRanks = 16;
constexpr size_t kStage = 1 << 20; // bytes that a rank shows the others at once
constexpr size_t kMail = 1 << 16;  // bytes under way from one rank to another

// What a rank is about to do. All must be about to do the same: on a real GPU they would hang, or mix up their data.
struct Deed {
  int32_t what, type, reduce, root;
  uint64_t count;
};

struct Place {
  std::atomic<int32_t> pid;
  std::atomic<uint64_t> started; // of the process, in clock ticks since boot: a pid is used again
  std::atomic<uint64_t> shown;   // how often this rank has shown something
  std::atomic<bool> left;
  Deed deed[2]; // of the last two times
};

struct Mailbox {
  std::atomic<uint64_t> sent, taken; // letters so far; one is under way at most
  uint64_t bytes;
  char letter[kMail];
};

struct Shared {
  std::atomic<uint32_t> bell; // rung at each change that somebody may wait for
  std::atomic<uint32_t> broken;
  Place place[kMaxRanks];
};

// What stands for a communicator before there is one; plain bytes that the ranks hand each other.
struct Identity {
  int32_t pid, fd;
  uint64_t started, number;
};

class Ranks {
public:
  // Makes an identity, and with it the memory. False after one line on stderr.
  static bool Identify(Identity *out);

  // Joins the others as rank `mine` of `count`; null after one line on stderr.
  static Ranks *Join(const Identity &identity, size_t count, size_t mine);

  ~Ranks();

  size_t Count() const { return count_; }
  size_t Mine() const { return mine_; }

  // Where this rank writes what it will show next, kStage bytes.
  char *Stage();

  // Shows what was written, and waits until all have shown theirs. False after one line on stderr: a rank is gone, or
  // is about to do something else. What was shown stays until the next but one Show().
  bool Show(const Deed &deed);

  // What a rank showed last.
  const char *Seen(size_t rank) const;

  Mailbox *Box(size_t from, size_t to) const;

  // Waits until ready() or a rank is gone: false after one line on stderr.
  template <typename Ready> bool Await(Ready ready) {
    for (;;) {
      const uint32_t bell = shared_->bell.load();
      if (ready())
        return true;
      if (!Sleep(bell))
        return ready();
    }
  }

  void Ring();

private:
  Ranks(Shared *shared, size_t bytes, int fd, size_t count, size_t mine)
      : shared_(shared), bytes_(bytes), fd_(fd), count_(count), mine_(mine) {}
  bool Sleep(uint32_t bell);
  bool Alive(size_t rank) const;

  Shared *shared_;
  size_t bytes_;
  int fd_;
  size_t count_, mine_;
  uint64_t shown_ = 0;
};

} // namespace simgpu
