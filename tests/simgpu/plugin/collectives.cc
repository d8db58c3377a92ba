// collectives.cc - the collective functions of Paddle's custom-device interface (xccl_*, in the place of NCCL), between
// processes of one machine. Data goes from device memory through the memory that the ranks share (ranks.h) and back, by
// copies of the driver; every call has done its work when it returns.
//
// A reduction adds rank 0, 1, 2, ... in this order on every rank, so all get the same bits. Ranks that do not call the
// same functions with the same sizes in the same order get an error, where NCCL would hang; so does one that waits for
// a rank that has ended.
#include "collectives.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

#include "driver.h"
#include "paddle/phi/common/bfloat16.h"
#include "paddle/phi/common/float16.h"
#include "ranks.h"

namespace simgpu {

namespace {

enum What { kAllReduce = 1, kBroadcast, kReduce, kAllGather, kReduceScatter };

struct Comm {
  std::unique_ptr<Ranks> ranks;
  int device;       // of the thread that joined
  std::mutex mutex; // one call at a time, whatever thread it comes from
};

Comm *CommOf(C_CCLComm comm) {
  return reinterpret_cast<Comm *>(comm);
}

size_t SizeOf(C_DataType type) {
  switch (type) {
  case BOOL:
  case UINT8:
  case INT8:
    return 1;
  case UINT16:
  case INT16:
  case FLOAT16:
  case BFLOAT16:
    return 2;
  case UINT32:
  case INT32:
  case FLOAT32:
    return 4;
  case UINT64:
  case INT64:
  case FLOAT64:
  case COMPLEX64:
    return 8;
  case COMPLEX128:
    return 16;
  default:
    return 0;
  }
}

Address At(const void *pointer, size_t bytes) {
  return reinterpret_cast<uintptr_t>(pointer) + bytes;
}

bool FromDevice(void *to, const void *from, size_t offset, size_t bytes) {
  return bytes == 0 || driver.to_host(to, At(from, offset), bytes) == kSuccess;
}

bool ToDevice(void *to, size_t offset, const void *from, size_t bytes) {
  return bytes == 0 || driver.to_device(At(to, offset), from, bytes) == kSuccess;
}

// ---- reductions ----
template <typename T> void Combine(T *into, const T *other, size_t count, C_CCLReduceOp reduce) {
  for (size_t i = 0; i < count; i++) {
    switch (reduce) {
    case MAX:
      into[i] = into[i] < other[i] ? other[i] : into[i];
      break;
    case MIN:
      into[i] = other[i] < into[i] ? other[i] : into[i];
      break;
    case PRODUCT:
      into[i] = static_cast<T>(into[i] * other[i]);
      break;
    default:
      into[i] = static_cast<T>(into[i] + other[i]);
    }
  }
}

// The same offset of what every rank showed, reduced into `into`.
template <typename T>
void ReduceShown(const Ranks &ranks, size_t offset, size_t count, C_CCLReduceOp reduce, char *into) {
  T *sum = reinterpret_cast<T *>(into);
  std::memcpy(sum, ranks.Seen(0) + offset, count * sizeof(T));
  for (size_t rank = 1; rank < ranks.Count(); rank++)
    Combine(sum, reinterpret_cast<const T *>(ranks.Seen(rank) + offset), count, reduce);
  for (size_t i = 0; reduce == AVG && i < count; i++)
    sum[i] = static_cast<T>(sum[i] / static_cast<T>(ranks.Count()));
}

using Reducer = void (*)(const Ranks &, size_t, size_t, C_CCLReduceOp, char *);

// Null for types that nothing is summed in.
Reducer ReducerOf(C_DataType type) {
  switch (type) {
  case BOOL:
  case UINT8:
    return ReduceShown<uint8_t>;
  case INT8:
    return ReduceShown<int8_t>;
  case INT16:
    return ReduceShown<int16_t>;
  case INT32:
    return ReduceShown<int32_t>;
  case INT64:
    return ReduceShown<int64_t>;
  case FLOAT16:
    return ReduceShown<phi::dtype::float16>;
  case BFLOAT16:
    return ReduceShown<phi::dtype::bfloat16>;
  case FLOAT32:
    return ReduceShown<float>;
  case FLOAT64:
    return ReduceShown<double>;
  default:
    return nullptr;
  }
}

// ---- the exchange that all collectives are made of ----
// Shows `bytes` a rank, a stage at a time: put(stage, offset, bytes) fills this rank's stage, take(offset, bytes) uses
// what all have shown.
template <typename Put, typename Take>
C_Status Exchange(C_CCLComm handle, const Deed &deed, size_t bytes, size_t most, Put put, Take take) {
  Comm *comm = CommOf(handle);
  if (!comm)
    return C_ERROR;
  std::lock_guard<std::mutex> guard(comm->mutex);
  if (Use(comm->device) != kSuccess)
    return C_ERROR;
  size_t offset = 0;
  do {
    const size_t now = std::min(most, bytes - offset);
    if (!put(comm->ranks->Stage(), offset, now) || !comm->ranks->Show(deed) || !take(*comm->ranks, offset, now))
      return C_ERROR;
    offset += now;
  } while (offset < bytes);
  return C_SUCCESS;
}

C_Status ReduceTo(What what, void *send, void *recv, size_t count, C_DataType type, C_CCLReduceOp reduce, size_t root,
                  C_CCLComm comm) {
  const size_t size = SizeOf(type);
  const Reducer reducer = ReducerOf(type);
  if (!reducer)
    return C_ERROR;
  std::unique_ptr<char[]> sum(new char[kStage]);
  return Exchange(
      comm, Deed{what, type, reduce, what == kReduce ? static_cast<int32_t>(root) : -1, count}, count * size, kStage,
      [&](char *stage, size_t offset, size_t bytes) { return FromDevice(stage, send, offset, bytes); },
      [&](const Ranks &ranks, size_t offset, size_t bytes) {
        if (what == kReduce && ranks.Mine() != root)
          return true;
        reducer(ranks, 0, bytes / size, reduce, sum.get());
        return ToDevice(recv, offset, sum.get(), bytes);
      });
}

C_Status AllReduce(void *send, void *recv, size_t count, C_DataType type, C_CCLReduceOp reduce, C_CCLComm comm,
                   C_Stream) {
  return ReduceTo(kAllReduce, send, recv, count, type, reduce, 0, comm);
}

C_Status Reduce(void *send, void *recv, size_t count, C_DataType type, C_CCLReduceOp reduce, size_t root,
                C_CCLComm comm, C_Stream) {
  return ReduceTo(kReduce, send, recv, count, type, reduce, root, comm);
}

C_Status Broadcast(void *buffer, size_t count, C_DataType type, size_t root, C_CCLComm comm, C_Stream) {
  const bool mine = CommOf(comm) && CommOf(comm)->ranks->Mine() == root;
  return Exchange(
      comm, Deed{kBroadcast, type, 0, static_cast<int32_t>(root), count}, count * SizeOf(type), kStage,
      [&](char *stage, size_t offset, size_t bytes) { return !mine || FromDevice(stage, buffer, offset, bytes); },
      [&](const Ranks &ranks, size_t offset, size_t bytes) {
        return mine || ToDevice(buffer, offset, ranks.Seen(root), bytes);
      });
}

C_Status AllGather(void *send, void *recv, size_t count, C_DataType type, C_CCLComm comm, C_Stream) {
  const size_t each = count * SizeOf(type);
  return Exchange(
      comm, Deed{kAllGather, type, 0, -1, count}, each, kStage,
      [&](char *stage, size_t offset, size_t bytes) { return FromDevice(stage, send, offset, bytes); },
      [&](const Ranks &ranks, size_t offset, size_t bytes) {
        bool done = true;
        for (size_t rank = 0; rank < ranks.Count() && done; rank++)
          done = ToDevice(recv, rank * each + offset, ranks.Seen(rank), bytes);
        return done;
      });
}

// count: what each rank gets.
C_Status ReduceScatter(void *send, void *recv, size_t count, C_DataType type, C_CCLReduceOp reduce, C_CCLComm comm,
                       C_Stream) {
  const Reducer reducer = ReducerOf(type);
  if (!reducer || !CommOf(comm))
    return C_ERROR;
  const size_t size = SizeOf(type), each = count * size, ranks = CommOf(comm)->ranks->Count();
  const size_t part = kStage / ranks / 16 * 16;
  std::unique_ptr<char[]> sum(new char[part]);
  return Exchange(
      comm, Deed{kReduceScatter, type, reduce, -1, count}, each, part,
      [&](char *stage, size_t offset, size_t bytes) {
        bool done = true;
        for (size_t rank = 0; rank < ranks && done; rank++)
          done = FromDevice(stage + rank * part, send, rank * each + offset, bytes);
        return done;
      },
      [&](const Ranks &all, size_t offset, size_t bytes) {
        reducer(all, all.Mine() * part, bytes / size, reduce, sum.get());
        return ToDevice(recv, offset, sum.get(), bytes);
      });
}

// ---- from one rank to another ----
struct Letter {
  Comm *comm;
  bool sends;
  char *buffer;
  size_t bytes, done, peer;
};

thread_local std::vector<Letter> letters; // of the group that is open
thread_local int groups = 0;

// One step of a letter, if its turn has come: (moved, failed).
bool Advance(Letter &letter, bool *failed) {
  Ranks &ranks = *letter.comm->ranks;
  Mailbox *box = letter.sends ? ranks.Box(ranks.Mine(), letter.peer) : ranks.Box(letter.peer, ranks.Mine());
  if (letter.done == letter.bytes || Use(letter.comm->device) != kSuccess ||
      (box->sent.load() == box->taken.load()) != letter.sends)
    return false;
  if (letter.sends) {
    box->bytes = std::min(kMail, letter.bytes - letter.done);
    *failed = !FromDevice(box->letter, letter.buffer, letter.done, box->bytes);
    letter.done += box->bytes;
    box->sent++;
  } else {
    *failed = box->bytes > letter.bytes - letter.done || !ToDevice(letter.buffer, letter.done, box->letter, box->bytes);
    letter.done += box->bytes;
    box->taken++;
  }
  ranks.Ring();
  return true;
}

// Of two letters in one direction the second waits for the first.
bool IsFirst(const std::vector<Letter> &all, size_t index) {
  for (size_t i = 0; i < index; i++)
    if (all[i].comm == all[index].comm && all[i].sends == all[index].sends && all[i].peer == all[index].peer &&
        all[i].done < all[i].bytes)
      return false;
  return true;
}

C_Status Deliver(std::vector<Letter> all) {
  bool failed = false;
  auto round = [&] {
    bool moved = false;
    for (size_t i = 0; i < all.size() && !failed; i++)
      moved = (IsFirst(all, i) && Advance(all[i], &failed)) || moved;
    return moved || failed;
  };
  auto open = [&]() -> Letter * {
    for (Letter &letter : all)
      if (letter.done < letter.bytes)
        return &letter;
    return nullptr;
  };
  while (Letter *letter = open()) {
    if (!letter->comm->ranks->Await(round) || failed)
      return C_ERROR;
  }
  return C_SUCCESS;
}

C_Status Post(bool sends, void *buffer, size_t count, C_DataType type, size_t peer, C_CCLComm comm) {
  if (!CommOf(comm) || peer >= CommOf(comm)->ranks->Count())
    return C_ERROR;
  const Letter letter{CommOf(comm), sends, static_cast<char *>(buffer), count * SizeOf(type), 0, peer};
  if (groups == 0)
    return Deliver({letter});
  letters.push_back(letter);
  return C_SUCCESS;
}

C_Status Send(void *buffer, size_t count, C_DataType type, size_t peer, C_CCLComm comm, C_Stream) {
  return Post(true, buffer, count, type, peer, comm);
}

C_Status Receive(void *buffer, size_t count, C_DataType type, size_t peer, C_CCLComm comm, C_Stream) {
  return Post(false, buffer, count, type, peer, comm);
}

C_Status GroupStart() {
  groups++;
  return C_SUCCESS;
}

C_Status GroupEnd() {
  if (groups == 0)
    return C_ERROR;
  if (--groups > 0)
    return C_SUCCESS;
  std::vector<Letter> all;
  all.swap(letters);
  return Deliver(std::move(all));
}

C_Status AllToAll(const void **send, const size_t *send_count, const C_DataType *send_type, void **recv,
                  const size_t *recv_count, const C_DataType *recv_type, size_t, size_t ranks, C_CCLComm comm,
                  C_Stream) {
  C_Status status = GroupStart();
  for (size_t i = 0; i < ranks && status == C_SUCCESS; i++) {
    status = Post(true, const_cast<void *>(send[i]), send_count[i], send_type[i], i, comm);
    if (status == C_SUCCESS)
      status = Post(false, recv[i], recv_count[i], recv_type[i], i, comm);
  }
  const C_Status end = GroupEnd();
  return status == C_SUCCESS ? end : status;
}

// ---- communicators ----
C_Status IdentitySize(size_t *size) {
  *size = sizeof(Identity);
  return C_SUCCESS;
}

C_Status MakeIdentity(C_CCLRootId *id) {
  return id->sz >= sizeof(Identity) && Ranks::Identify(static_cast<Identity *>(id->data)) ? C_SUCCESS : C_ERROR;
}

C_Status Join(size_t count, C_CCLRootId *id, size_t mine, C_CCLComm *out) {
  Identity identity;
  if (id->sz < sizeof identity)
    return C_ERROR;
  std::memcpy(&identity, id->data, sizeof identity);
  Ranks *ranks = Ranks::Join(identity, count, mine);
  if (!ranks)
    return C_ERROR;
  Comm *comm = new Comm;
  comm->ranks.reset(ranks);
  comm->device = Current();
  *out = reinterpret_cast<C_CCLComm>(comm);
  return C_SUCCESS;
}

C_Status Leave(C_CCLComm comm) {
  delete CommOf(comm);
  return C_SUCCESS;
}

} // namespace

void OfferCollectives(C_DeviceInterface *i) {
  i->xccl_get_unique_id_size = IdentitySize;
  i->xccl_get_unique_id = MakeIdentity;
  i->xccl_comm_init_rank = Join;
  i->xccl_destroy_comm = Leave;
  i->xccl_all_reduce = AllReduce;
  i->xccl_broadcast = Broadcast;
  i->xccl_reduce = Reduce;
  i->xccl_all_gather = AllGather;
  i->xccl_reduce_scatter = ReduceScatter;
  i->xccl_group_start = GroupStart;
  i->xccl_group_end = GroupEnd;
  i->xccl_send = Send;
  i->xccl_recv = Receive;
  i->xccl_all_to_all = AllToAll;
}

} // namespace simgpu
