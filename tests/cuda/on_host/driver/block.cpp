#include "block.h"

#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "check.h"
#include "fibre.h"

on_host::State on_host_state;

namespace on_host {
namespace {

constexpr int kIllegalAddress = 700;
constexpr int kMisaligned = 716;
constexpr int kLaunchFailed = 719;

constexpr size_t kStackSize = 128 << 10;
// Stacks start at different places of a page, so that the same variable of neighbouring threads
// does not fall on one set of the cache.
constexpr size_t kStackColour = 704;
constexpr unsigned kStackColours = 16;
constexpr uint64_t kStackEnd = 0x5afe57ac5afe57ac;
// What separates two __shared__ variables in the checking build, to tell them apart.
constexpr size_t kSharedGap = 64;

struct Block {
  Thread threads[kMaxThreads];
  Warp warps[kMaxThreads / kWarpSize];
  unsigned num_threads, num_warps;
  unsigned live, waiting;  // threads that have not returned; that wait at __syncthreads
  unsigned warp;           // that ran last
  unsigned barrier_line;
  size_t shared_used;
  size_t shared_limit;
  unsigned num_variables;
  struct {
    size_t offset, size;
  } variables[64];
  std::vector<Copy> copies[kMaxThreads];
  const Launch* launch;
  Order order;
  uint64_t random;
  void* scheduler;  // stack pointer of the caller of run
  Failure failure;
};

Block block;
unsigned char* stacks;
unsigned char* shared_memory;
sigjmp_buf fault;
volatile bool executing;

uint64_t next_random() {
  block.random ^= block.random << 13;
  block.random ^= block.random >> 7;
  block.random ^= block.random << 17;
  return block.random;
}

unsigned pick(uint32_t candidates) {
  switch (block.order.kind) {
    case Order::kForward:
      return static_cast<unsigned>(__builtin_ctz(candidates));
    case Order::kReverse:
      return 31 - static_cast<unsigned>(__builtin_clz(candidates));
    case Order::kRandom:
      break;
  }
  const unsigned turn = next_random() & 31;
  const uint32_t turned = turn == 0 ? candidates : candidates >> turn | candidates << (32 - turn);
  return (static_cast<unsigned>(__builtin_ctz(turned)) + turn) & 31;
}

// A warp that can go on: in order from the first, or the last, or a random one. The warp that runs
// is left only when none of its lanes can go on, or in random order at any time.
Warp* pick_warp() {
  unsigned start = 0;
  if (block.order.kind == Order::kRandom) start = next_random() % block.num_warps;
  for (unsigned i = 0; i < block.num_warps; ++i) {
    unsigned index = start + i;
    if (index >= block.num_warps) index -= block.num_warps;
    if (block.order.kind == Order::kReverse) index = block.num_warps - 1 - index;
    if (block.warps[index].ready != 0) return &block.warps[index];
  }
  return nullptr;
}

void switch_to(Thread* thread) {
  Thread* me = on_host_state.current;
  if (thread == me) return;
  on_host_state.current = thread;
  on_host_switch(&me->stack_pointer, thread->stack_pointer);
}

// Leave the block for good, from a thread that nobody goes on with.
[[noreturn]] void leave() {
  void* unused;
  on_host_switch(&unused, block.scheduler);
  __builtin_unreachable();
}

std::string where_all_wait() {
  std::string text;
  int listed = 0;
  for (unsigned i = 0; i < block.num_threads && listed < 4; ++i) {
    const Thread& thread = block.threads[i];
    if (!(thread.warp->live >> thread.lane & 1)) continue;
    const bool differs = listed == 0 || thread.waits_for != block.threads[i - 1].waits_for ||
                         thread.line != block.threads[i - 1].line;
    if (!differs) continue;
    char line[160];
    std::snprintf(line, sizeof line, "%s thread %u at %s (line %u)", listed ? ";" : "", i,
                  thread.waits_for ? thread.waits_for : "its start", thread.line);
    text += line;
    ++listed;
  }
  return text;
}

void next_thread(Warp* warp) {
  if (block.order.kind == Order::kRandom || warp->ready == 0) warp = pick_warp();
  if (warp == nullptr) {
    on_host_fail(kLaunchFailed, "no thread can go on:%s", where_all_wait().c_str());
  }
  switch_to(&block.threads[warp->first_thread + pick(warp->ready)]);
}

void release_barrier() {
  block.waiting = 0;
  for (unsigned i = 0; i < block.num_warps; ++i) {
    block.warps[i].ready |= block.warps[i].barrier;
    block.warps[i].barrier = 0;
  }
  note_barrier();
}

// Let the lanes of a collective go on, once all have come that will.
void complete_pending(Warp* warp, unsigned index, Execute execute) {
  Pending pending = warp->pending[index];
  warp->pending[index] = warp->pending[--warp->num_pending];
  execute(warp->registers);
  warp->ready |= pending.arrived;
  if (pending.arrived == warp->live && std::strcmp(pending.operation, "__syncwarp") == 0) {
    note_warp_barrier(warp->first_thread);
  }
  if (pending.arrived == warp->live) note_warp_met(warp->first_thread);
}

void thread_entry() {
  block.launch->kernel->call(block.launch->arguments);
  Thread* me = on_host_state.current;
  Warp* warp = me->warp;
  const uint32_t bit = 1u << me->lane;
  if (me->num_copies != 0) {
    // Legal, but what was asked for never arrives where anybody could use it.
    me->num_copies = 0;
  }
  warp->live &= ~bit;
  warp->ready &= ~bit;
  --block.live;
  for (unsigned i = 0; i < warp->num_pending; ++i) {
    if (warp->pending[i].mask & bit) {
      on_host_fail(kLaunchFailed, "thread %u returned while lanes of its warp wait for it at %s "
                   "(line %u)", me->number, warp->pending[i].operation, warp->pending[i].line);
    }
  }
  if (block.live == 0) leave();
  if (block.waiting == block.live) release_barrier();
  next_thread(warp);
  __builtin_unreachable();
}

void start_block() {
  on_host_state.block_number++;
  note_block(shared_memory);
  block.shared_used = 0;
  block.num_variables = 0;
  block.live = block.num_threads;
  block.waiting = 0;
  on_host_state.dynamic_shared_size = block.launch->dynamic_shared;
  on_host_state.dynamic_shared = static_cast<unsigned char*>(
      block.launch->dynamic_shared ? on_host_shared(block.launch->dynamic_shared, 1024) : nullptr);
  for (unsigned i = 0; i < block.num_warps; ++i) {
    Warp& warp = block.warps[i];
    const unsigned lanes = std::min(kWarpSize, block.num_threads - i * kWarpSize);
    warp.live = warp.ready = lanes == kWarpSize ? kFullMask : (1u << lanes) - 1;
    warp.barrier = 0;
    warp.num_pending = 0;
    warp.first_thread = i * kWarpSize;
  }
  const Index& dim = on_host_state.block_dim;
  for (unsigned i = 0; i < block.num_threads; ++i) {
    Thread& thread = block.threads[i];
    thread.index = {i % dim.x, i / dim.x % dim.y, i / dim.x / dim.y};
    thread.lane = i % kWarpSize;
    thread.number = i;
    thread.warp = &block.warps[i / kWarpSize];
    thread.waits_for = nullptr;
    thread.line = 0;
    thread.num_copies = thread.commits = 0;
    unsigned char* stack = stacks + i * kStackSize;
    std::memcpy(stack, &kStackEnd, sizeof kStackEnd);
    thread.stack_pointer = prepare_fibre(
        stack, kStackSize - i % kStackColours * kStackColour, thread_entry);
  }
}

void check_stacks() {
  for (unsigned i = 0; i < block.num_threads; ++i) {
    if (std::memcmp(stacks + i * kStackSize, &kStackEnd, sizeof kStackEnd) != 0) {
      block.failure = {kLaunchFailed, "a thread needs more stack than the stand-in GPU has"};
    }
  }
}

void on_fault(int, siginfo_t* info, void*) {
  if (!executing) {
    signal(SIGSEGV, SIG_DFL);
    return;
  }
  char text[160];
  std::snprintf(text, sizeof text, "access to address %p, which is no memory of the device",
                info->si_addr);
  block.failure = {kIllegalAddress, text};
  siglongjmp(fault, 1);
}

// Turns an access to no memory at all into the error that a GPU would report.
class FaultGuard {
 public:
  FaultGuard() {
    static unsigned char alternative[64 << 10];
    stack_t stack = {};
    stack.ss_sp = alternative;
    stack.ss_size = sizeof alternative;
    sigaltstack(&stack, &old_stack_);
    struct sigaction action = {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    sigaction(SIGSEGV, &action, &old_segv_);
    sigaction(SIGBUS, &action, &old_bus_);
    executing = true;
  }
  ~FaultGuard() {
    executing = false;
    sigaction(SIGSEGV, &old_segv_, nullptr);
    sigaction(SIGBUS, &old_bus_, nullptr);
    sigaltstack(&old_stack_, nullptr);
  }

 private:
  stack_t old_stack_;
  struct sigaction old_segv_, old_bus_;
};

void* reserve(size_t size) {
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return memory == MAP_FAILED ? nullptr : memory;
}

}  // namespace

Failure run(const Launch& launch, const Order& order) {
  if (stacks == nullptr) {
    stacks = static_cast<unsigned char*>(reserve(kMaxThreads * kStackSize));
    shared_memory = static_cast<unsigned char*>(reserve(kSharedCapacity));
    if (stacks == nullptr || shared_memory == nullptr) {
      stacks = nullptr;
      return {2, "no memory for the stacks of a block's threads"};
    }
  }
  block.launch = &launch;
  block.order = order;
  block.random = order.seed * 2654435761u + 88172645463325252u;
  block.failure = {0, ""};
  block.shared_limit = launch.shared_limit;
  block.num_threads = launch.block.x * launch.block.y * launch.block.z;
  block.num_warps = (block.num_threads + kWarpSize - 1) / kWarpSize;
  on_host_state.block_dim = launch.block;
  on_host_state.grid_dim = launch.grid;
  const uint64_t blocks = uint64_t{1} * launch.grid.x * launch.grid.y * launch.grid.z;
  FaultGuard guard;
  if (sigsetjmp(fault, 1) == 0) {
    for (uint64_t i = 0; i < blocks && block.failure.code == 0; ++i) {
      const uint64_t number = order.kind == Order::kReverse ? blocks - 1 - i : i;
      on_host_state.block = {static_cast<unsigned>(number % launch.grid.x),
                             static_cast<unsigned>(number / launch.grid.x % launch.grid.y),
                             static_cast<unsigned>(number / launch.grid.x / launch.grid.y)};
      start_block();
      Warp* warp = pick_warp();
      Thread* first = &block.threads[warp->first_thread + pick(warp->ready)];
      on_host_state.current = first;
      on_host_switch(&block.scheduler, first->stack_pointer);
      if (block.failure.code == 0) check_stacks();
    }
  }
  if (block.failure.code != 0) {
    char text[320];
    const Thread* thread = on_host_state.current;
    std::snprintf(text, sizeof text, "kernel %s, block (%u, %u, %u), thread (%u, %u, %u): ",
                  launch.kernel->name, on_host_state.block.x, on_host_state.block.y,
                  on_host_state.block.z, thread->index.x, thread->index.y, thread->index.z);
    block.failure.message = text + block.failure.message;
  }
  return block.failure;
}

void check_shared_bounds(const void* address, unsigned size, const char* operation) {
  const size_t offset =
      reinterpret_cast<uintptr_t>(address) - reinterpret_cast<uintptr_t>(shared_memory);
  for (unsigned i = 0; i < block.num_variables; ++i) {
    const auto& variable = block.variables[i];
    if (offset >= variable.offset && offset + size <= variable.offset + variable.size) return;
  }
  if (offset >= kSharedCapacity) {
    on_host_fail(kIllegalAddress, "%s at %p, which is not shared memory", operation, address);
  }
  on_host_fail(kIllegalAddress,
               "%s of %u bytes outside of every __shared__ variable: at byte %zu of %zu", operation,
               size, offset, block.shared_used);
}

void check_shared(const void* address, unsigned size, const char* operation, unsigned lane) {
  if (reinterpret_cast<uintptr_t>(address) % size != 0) {
    on_host_fail(kMisaligned, "%s of lane %u at an address that is no multiple of %u", operation,
                 lane, size);
  }
  check_shared_bounds(address, size, operation);
}

bool on_own_stack(const void* address) {
  const unsigned char* stack = stacks + on_host_state.current->number * kStackSize;
  return static_cast<size_t>(static_cast<const unsigned char*>(address) - stack) < kStackSize;
}

}  // namespace on_host

using namespace on_host;

extern "C" {

void on_host_fail(int code, const char* format, ...) {
  char text[1024];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  block.failure = {code, text};
  leave();
}

void on_host_collective(uint32_t mask, const char* operation, unsigned line, bool aligned,
                        Execute execute) {
  Thread* me = on_host_state.current;
  Warp* warp = me->warp;
  const uint32_t bit = 1u << me->lane;
  if (aligned && warp->live != kFullMask) {
    on_host_fail(kLaunchFailed, "%s (line %u) in a warp of which lanes are missing or have "
                 "returned: %08x take part", operation, line, warp->live);
  }
  if (!(mask & bit)) {
    on_host_fail(kLaunchFailed, "%s (line %u) with a mask %08x that lacks the lane itself",
                 operation, line, mask);
  }
  unsigned index = 0;
  for (; index < warp->num_pending; ++index) {
    if (warp->pending[index].mask & mask) break;
  }
  Pending& pending = warp->pending[index];
  if (index == warp->num_pending) {
    pending = {mask, 0, operation, line};
    ++warp->num_pending;
  } else if (pending.mask != mask || pending.operation != operation || pending.line != line) {
    on_host_fail(kLaunchFailed, "lanes of a warp diverge: %s (line %u, mask %08x) while others "
                 "wait at %s (line %u, mask %08x)", operation, line, mask, pending.operation,
                 pending.line, pending.mask);
  }
  pending.arrived |= bit;
  warp->ready &= ~bit;
  me->waits_for = operation;
  me->line = line;
  if (pending.arrived == (mask & warp->live)) {
    complete_pending(warp, index, execute);
    if (block.order.kind != Order::kRandom) return;
  }
  next_thread(warp);
}

void on_host_barrier(unsigned line) {
  Thread* me = on_host_state.current;
  Warp* warp = me->warp;
  const uint32_t bit = 1u << me->lane;
  if (block.waiting == 0) {
    block.barrier_line = line;
  } else if (block.barrier_line != line) {
    on_host_fail(kLaunchFailed, "threads of a block meet at different barriers: __syncthreads of "
                 "line %u, while others wait at that of line %u", line, block.barrier_line);
  }
  warp->ready &= ~bit;
  warp->barrier |= bit;
  me->waits_for = "__syncthreads";
  me->line = line;
  if (++block.waiting == block.live) {
    release_barrier();
    warp = pick_warp();
  }
  next_thread(warp);
}

void* on_host_shared(size_t size, size_t alignment) {
  size_t gap = checking() && block.num_variables ? kSharedGap : 0;
  size_t offset = (block.shared_used + gap + alignment - 1) / alignment * alignment;
  if (block.num_variables == sizeof block.variables / sizeof block.variables[0]) {
    on_host_fail(kLaunchFailed, "a block with more __shared__ variables than are provided for");
  }
  block.variables[block.num_variables++] = {offset, size};
  block.shared_used = offset + size;
  if (block.shared_used > kSharedCapacity) {
    on_host_fail(kLaunchFailed, "a block of %zu bytes of shared memory", block.shared_used);
  }
  if (block.shared_used > block.shared_limit && !checking()) {
    on_host_fail(kLaunchFailed, "a block of %zu bytes of shared memory, and %zu are allowed",
                 block.shared_used, block.shared_limit);
  }
  std::memset(shared_memory + offset, kUnwritten, size);
  note_shared(offset, size);
  return shared_memory + offset;
}

// Copies arrive as late as the waits allow, and until then their place holds what nobody wrote. So
// whoever reads too early, or still reads what a copy replaces, gets bytes that are plainly wrong.
void on_host_copy_async(void* destination, const void* source, unsigned size, unsigned copied) {
  Thread* me = on_host_state.current;
  check_shared(destination, size, "cp.async", me->lane);
  if (copied != 0 && reinterpret_cast<uintptr_t>(source) % size != 0) {
    on_host_fail(kMisaligned, "cp.async from an address that is no multiple of %u", size);
  }
  const Copy copy = {destination, source, size, copied, me->commits};
  note_copy_started(copy, __builtin_return_address(0));
  std::memset(destination, kUnwritten, size);
  std::vector<Copy>& copies = block.copies[me->number];
  copies.resize(me->num_copies++);
  copies.push_back(copy);
}

void on_host_copy_commit() { ++on_host_state.current->commits; }

void on_host_copy_wait(unsigned groups) {
  Thread* me = on_host_state.current;
  std::vector<Copy>& copies = block.copies[me->number];
  unsigned kept = 0;
  for (unsigned i = 0; i < me->num_copies; ++i) {
    const Copy& copy = copies[i];
    if (copy.group + groups >= me->commits) {
      copies[kept++] = copy;
      continue;
    }
    note_copy_arrived(copy);
    std::memcpy(copy.destination, copy.source, copy.copied);
    std::memset(static_cast<char*>(copy.destination) + copy.copied, 0, copy.size - copy.copied);
  }
  me->num_copies = kept;
}

void on_host_access_shared(const void* address, unsigned size, bool write, const char* operation) {
  check_shared(address, size, operation, on_host_state.current->lane);
  note_shared_access(address, size, write, __builtin_return_address(0));
}

}  // extern "C"
