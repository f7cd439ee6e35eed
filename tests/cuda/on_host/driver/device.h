// The one device of the stand-in driver: its properties, memory, streams, graphs and modules.
// Everything is done under one lock, and work runs on the thread that waits for it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "block.h"
#include "memory.h"

namespace on_host {

// CUresult and cudaError_t, which have the same numbers since CUDA 10.
enum Code {
  kSuccess = 0,
  kInvalidValue = 1,
  kMemoryAllocation = 2,
  kInvalidConfiguration = 9,
  kInvalidMemcpyDirection = 21,
  kNoDevice = 100,
  kInvalidDevice = 101,
  kInvalidImage = 200,
  kInvalidContext = 201,
  kNoBinaryForGpu = 209,
  kInvalidHandle = 400,
  kNotFound = 500,
  kNotReady = 600,
  kIllegalAddress = 700,
  kLaunchOutOfResources = 701,
  kMisalignedAddress = 716,
  kLaunchFailed = 719,
  kNotSupported = 801,
  kCaptureUnsupported = 900,
  kCaptureInvalidated = 901,
  kCaptureUnmatched = 903,
  kCaptureUnjoined = 904,
  kCaptureIsolation = 905,
  kCaptureImplicit = 906,
  kCaptureWrongThread = 908,
};

struct Properties {
  const char* name;
  unsigned capability;  // 75, 80, 90
  int multiprocessors;
  size_t memory;           // bytes
  size_t shared_default;   // bytes of shared memory per block
  size_t shared_optin;     // the most that an attribute of the function allows
  int shared_multiprocessor;
  int registers;           // of a multiprocessor and of a block
  int threads_multiprocessor;
  int clock_khz, memory_clock_khz, bus_width, l2_bytes;
};

struct Module;

struct Function {
  const Kernel* kernel;
  const Module* module;
  size_t max_dynamic_shared;  // as set by cuFuncSetAttribute
};

struct Module {
  void* handle = nullptr;
  const Image* image = nullptr;
  std::map<std::string, std::unique_ptr<Function>> functions;
};

struct Stream;
struct Event;
struct Graph;

constexpr size_t kArgumentSize = 16;  // bytes, with those behind it

// Something to do, in the order of a stream.
struct Operation {
  enum Kind { kKernel, kCopy, kRecord, kWait, kGraph } kind;
  uint64_t ticket = 0;  // order of submission on the device
  // kKernel
  const Function* function = nullptr;
  Index grid{}, block{};
  unsigned dynamic_shared = 0;
  std::vector<unsigned char> arguments;  // kArgumentSize each
  // kCopy
  void* to = nullptr;
  const void* from = nullptr;
  size_t size = 0;
  // kRecord, kWait
  std::shared_ptr<Event> event;
  // kGraph
  std::shared_ptr<Graph> graph;
};

struct Event {
  bool timing = true;
  uint64_t record_ticket = 0;  // of the latest record; 0: never recorded
  bool done = false;           // whether a record has happened
  Stream* stream = nullptr;    // of the latest record
  double milliseconds = 0;
};

struct Graph {
  std::vector<Operation> nodes;
  std::shared_ptr<Graph> source;  // of an executable: what it was made of
};

struct Capture {
  int mode = 0;  // 0 global, 1 thread local, 2 relaxed
  uint64_t thread = 0;
  bool invalidated = false;
  std::vector<Operation> nodes;
};

struct Stream {
  bool blocking = true;  // waits for the legacy default stream, and it for this one
  std::vector<Operation> queue;
  size_t next = 0;
  std::unique_ptr<Capture> capture;
};

class Device {
 public:
  static Device& instance();

  std::recursive_mutex lock;
  Properties properties;
  int count;  // devices: 0 or 1
  std::unique_ptr<Memory> memory;
  Order order;  // of the threads of a block

  // The error that a kernel left behind: every later call reports it.
  int sticky = kSuccess;
  std::string report;  // what exactly went wrong, of the last error

  Stream* stream(void* handle);  // null: no such stream
  Stream* create_stream(bool blocking);
  int destroy_stream(Stream* stream);

  // Queue an operation, or record it where the stream is captured.
  int submit(Stream* stream, Operation operation);
  int copy(void* to, const void* from, size_t size, int kind, Stream* stream);
  int prepare(const Function* function, Index grid, Index block, unsigned dynamic_shared,
              void** arguments, Operation& operation);
  int launch(const Function* function, Index grid, Index block, unsigned dynamic_shared,
             Stream* stream, void** arguments);

  // Run what was queued.
  int synchronize(Stream* stream);
  int synchronize_all();
  int synchronize(Event& event);

  int begin_capture(Stream* stream, int mode);
  int end_capture(Stream* stream, std::shared_ptr<Graph>& graph);
  // Whether an operation that is not allowed during a capture may go on; invalidates it if not.
  int unsafe_call();

  int host_allocate(void** pointer, size_t size);
  int host_free(void* pointer);
  bool is_pinned(const void* pointer, size_t size) const;

  int load(const void* image, Module*& module);

  // Counts a call; the error to return instead of doing it, if one was asked for.
  int enter(const char* name);
  uint64_t calls(const std::string& name) const;
  void note(const std::string& line);

  int fail(int code, const std::string& message);

  // Become the device of a capability; memory stays.
  void become(unsigned capability);

 private:
  Device();
  int execute(Operation& operation);
  int execute_kernel(const Operation& operation);
  int execute_copy(const Operation& operation);
  void run_until(Stream* stream, uint64_t ticket);

  std::map<Stream*, std::unique_ptr<Stream>> streams_;
  Stream legacy_;
  uint64_t tickets_ = 0;
  bool eager_ = false;
  std::map<uintptr_t, std::pair<size_t, unsigned char*>> pinned_;
  std::map<std::string, uint64_t> calls_;
  std::string fail_call_;
  uint64_t fail_after_ = 0;
  int fail_code_ = 0;
  std::string log_path_;
};

const char* error_name(int code);
const char* error_string(int code);

}  // namespace on_host
