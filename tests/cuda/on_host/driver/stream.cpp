// Streams and their capture. Work is done as late as CUDA allows: when somebody waits for it. So
// what is read too early has the old bytes, and what is overwritten too early the new ones.
#include <pthread.h>
#include <time.h>

#include <algorithm>
#include <cstring>

#include "device.h"

namespace on_host {
namespace {

uint64_t this_thread() { return static_cast<uint64_t>(pthread_self()); }

double now_in_milliseconds() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return 1e3 * static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_nsec);
}

bool is_legacy(const void* handle) {
  // cudaStreamLegacy is 1; cudaStreamPerThread, 2, nobody uses here.
  return handle == nullptr || handle == reinterpret_cast<void*>(1);
}

}  // namespace

Stream* Device::stream(void* handle) {
  if (is_legacy(handle)) return &legacy_;
  const auto found = streams_.find(static_cast<Stream*>(handle));
  return found == streams_.end() ? nullptr : found->second.get();
}

Stream* Device::create_stream(bool blocking) {
  auto stream = std::make_unique<Stream>();
  stream->blocking = blocking;
  Stream* handle = stream.get();
  streams_[handle] = std::move(stream);
  return handle;
}

int Device::destroy_stream(Stream* stream) {
  if (stream == &legacy_) return kInvalidHandle;
  const int code = stream->capture ? kSuccess : synchronize(stream);
  streams_.erase(stream);
  return code;
}

int Device::submit(Stream* stream, Operation operation) {
  if (stream->capture != nullptr) {
    if (stream->capture->invalidated) return kCaptureInvalidated;
    stream->capture->nodes.push_back(std::move(operation));
    return kSuccess;
  }
  if (stream == &legacy_) {
    // The legacy stream waits for blocking streams, and a captured one never gets to the end.
    for (auto& entry : streams_) {
      if (entry.second->capture && entry.second->blocking) {
        entry.second->capture->invalidated = true;
        return fail(kCaptureImplicit,
                    "work on the default stream while a blocking stream is captured");
      }
    }
  }
  operation.ticket = ++tickets_;
  if (operation.kind == Operation::kRecord) {
    operation.event->record_ticket = operation.ticket;
    operation.event->stream = stream;
  }
  stream->queue.push_back(std::move(operation));
  return eager_ ? synchronize(stream) : sticky;
}

void Device::run_until(Stream* stream, uint64_t ticket) {
  while (stream->next < stream->queue.size() && stream->queue[stream->next].ticket <= ticket) {
    Operation operation = std::move(stream->queue[stream->next++]);
    if (stream == &legacy_) {
      for (auto& entry : streams_) {
        if (entry.second->blocking) run_until(entry.second.get(), operation.ticket);
      }
    } else if (stream->blocking) {
      run_until(&legacy_, operation.ticket);
    }
    if (sticky == kSuccess) sticky = execute(operation);
  }
  if (stream->next == stream->queue.size()) {
    stream->queue.clear();
    stream->next = 0;
  }
}

int Device::synchronize(Stream* stream) {
  if (stream->capture != nullptr) {
    stream->capture->invalidated = true;
    return kCaptureUnsupported;
  }
  run_until(stream, tickets_);
  if (sticky != kSuccess) return sticky;
  const std::string damage = memory->damage();
  if (!damage.empty()) sticky = fail(kIllegalAddress, damage);
  return sticky;
}

int Device::synchronize_all() {
  for (auto& entry : streams_) {
    if (entry.second->capture == nullptr) run_until(entry.second.get(), tickets_);
  }
  return legacy_.capture ? kCaptureUnsupported : synchronize(&legacy_);
}

int Device::synchronize(Event& event) {
  if (event.stream != nullptr && streams_.count(event.stream) + (event.stream == &legacy_) > 0) {
    run_until(event.stream, event.record_ticket);
  }
  return sticky;
}

int Device::execute(Operation& operation) {
  switch (operation.kind) {
    case Operation::kKernel:
      return execute_kernel(operation);
    case Operation::kCopy:
      return execute_copy(operation);
    case Operation::kRecord:
      operation.event->milliseconds = now_in_milliseconds();
      operation.event->done = true;
      return kSuccess;
    case Operation::kWait:
      return synchronize(*operation.event);
    case Operation::kGraph:
      for (Operation& node : operation.graph->nodes) {
        if (const int code = execute(node)) return code;
      }
      return kSuccess;
  }
  return kInvalidValue;
}

int Device::copy(void* to, const void* from, size_t size, int kind, Stream* stream) {
  const auto target = reinterpret_cast<uintptr_t>(to);
  const auto source = reinterpret_cast<uintptr_t>(from);
  const bool to_device = memory->in_window(target), from_device = memory->in_window(source);
  // cudaMemcpyKind: from host or device (0, 2) to host or device (0, 1), or as addresses say.
  constexpr int kByAddress = 4;
  if (kind < 0 || kind > kByAddress) return kInvalidMemcpyDirection;
  const int actual = (from_device ? 2 : 0) + (to_device ? 1 : 0);
  if (kind != kByAddress && kind != actual) {
    return fail(kInvalidMemcpyDirection, "a copy whose addresses are not where its direction says");
  }
  if (size == 0) return kSuccess;
  if ((to_device && memory->find(target, size) == nullptr) ||
      (from_device && memory->find(source, size) == nullptr)) {
    return fail(kInvalidValue, "a copy of bytes that are not in one allocation");
  }
  Operation operation;
  operation.kind = Operation::kCopy;
  operation.to = to;
  operation.from = from;
  operation.size = size;
  const bool pageable = (!to_device && !is_pinned(to, size)) ||
                        (!from_device && !is_pinned(from, size));
  if (!pageable || actual == 3) return submit(stream, std::move(operation));
  if (stream->capture != nullptr) {
    // A driver may allow it; what is captured keeps an address that the library does not own.
    stream->capture->invalidated = true;
    return fail(kCaptureUnsupported, "a copy of pageable memory in a captured stream");
  }
  // Copies of pageable memory are over, for the host's side, when the call returns.
  if (const int code = submit(stream, std::move(operation))) return code;
  return synchronize(stream);
}

int Device::execute_copy(const Operation& operation) {
  const auto place = [&](const void* pointer) -> unsigned char* {
    const auto address = reinterpret_cast<uintptr_t>(pointer);
    if (!memory->in_window(address)) return static_cast<unsigned char*>(const_cast<void*>(pointer));
    if (memory->find(address, operation.size) == nullptr) return nullptr;
    return static_cast<unsigned char*>(memory->translate(address));
  };
  unsigned char* to = place(operation.to);
  const unsigned char* from = place(operation.from);
  if (to == nullptr || from == nullptr) {
    return fail(kIllegalAddress, "a copy of device memory that has been freed");
  }
  std::memmove(to, from, operation.size);
  return kSuccess;
}

// ---- Capture ------------------------------------------------------------------------------------

int Device::begin_capture(Stream* stream, int mode) {
  if (stream == &legacy_) return fail(kCaptureUnsupported, "the legacy stream cannot be captured");
  if (stream->capture != nullptr) return kInvalidValue;
  stream->capture = std::make_unique<Capture>();
  stream->capture->mode = mode;
  stream->capture->thread = this_thread();
  return kSuccess;
}

int Device::end_capture(Stream* stream, std::shared_ptr<Graph>& graph) {
  if (stream->capture == nullptr) return kCaptureUnmatched;
  constexpr int kRelaxed = 2;
  if (stream->capture->mode != kRelaxed && stream->capture->thread != this_thread()) {
    return kCaptureWrongThread;
  }
  const std::unique_ptr<Capture> capture = std::move(stream->capture);
  if (capture->invalidated) return kCaptureInvalidated;
  graph = std::make_shared<Graph>();
  graph->nodes = std::move(capture->nodes);
  return kSuccess;
}

int Device::unsafe_call() {
  for (auto& entry : streams_) {
    Capture* capture = entry.second->capture.get();
    if (capture == nullptr) continue;
    const bool own = capture->thread == this_thread();
    if (capture->mode == 0 || (capture->mode == 1 && own)) {
      capture->invalidated = true;
      return fail(kCaptureUnsupported, "a call that is not allowed while a stream is captured");
    }
  }
  return kSuccess;
}

}  // namespace on_host
