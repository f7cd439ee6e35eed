#include "device.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace on_host {
namespace {

// Published numbers of a T4, an A100 (SXM, 40 GB) and an H100 (SXM).
constexpr size_t kMiB = size_t{1} << 20;
constexpr Properties kDevices[] = {
    {"Stand-in T4", 75, 40, 15 * 1024 * kMiB, 48 << 10, 64 << 10, 64 << 10, 65536, 1024, 1590000,
     5001000, 256, 4 << 20},
    {"Stand-in A100", 80, 108, 40 * 1024 * kMiB, 48 << 10, 163 << 10, 164 << 10, 65536, 2048,
     1410000, 1215000, 5120, 40 << 20},
    {"Stand-in H100", 90, 132, 80 * 1024 * kMiB, 48 << 10, 227 << 10, 228 << 10, 65536, 2048,
     1980000, 2619000, 5120, 50 << 20},
};

long variable(const char* name, long otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr || *text == 0 ? otherwise : std::atol(text);
}

Order order_from_environment() {
  const char* text = std::getenv("STAND_IN_GPU_ORDER");
  if (text == nullptr || std::strcmp(text, "forward") == 0) return {};
  if (std::strcmp(text, "reverse") == 0) return {Order::kReverse, 0};
  return {Order::kRandom, static_cast<uint64_t>(std::atoll(text))};
}

}  // namespace

Device& Device::instance() {
  // Never destroyed: modules unload, and memory is given back, after static destructors have run.
  static Device* device = new Device;
  return *device;
}

Device::Device() : count(static_cast<int>(variable("STAND_IN_GPU_DEVICES", 1))) {
  become(static_cast<unsigned>(variable("STAND_IN_GPU_CAPABILITY", 75)));
  properties.memory = static_cast<size_t>(
      variable("STAND_IN_GPU_MEMORY", static_cast<long>(properties.memory)));
  memory = std::make_unique<Memory>(properties.memory);
  eager_ = variable("STAND_IN_GPU_EAGER", 0) != 0;
  order = order_from_environment();
  if (const char* path = std::getenv("STAND_IN_GPU_LOG")) log_path_ = path;
  // "cudaMalloc:3:2": the third call and later ones return error 2.
  if (const char* text = std::getenv("STAND_IN_GPU_FAIL")) {
    const std::string whole = text;
    const size_t first = whole.find(':'), second = whole.find(':', first + 1);
    if (first != std::string::npos && second != std::string::npos) {
      fail_call_ = whole.substr(0, first);
      fail_after_ = std::strtoull(whole.c_str() + first + 1, nullptr, 10);
      fail_code_ = std::atoi(whole.c_str() + second + 1);
    }
  }
}

void Device::become(unsigned capability) {
  properties = kDevices[0];
  for (const Properties& candidate : kDevices) {
    if (candidate.capability <= capability) properties = candidate;
  }
  properties.capability = capability;
}

int Device::enter(const char* name) {
  const uint64_t times = ++calls_[name];
  if (sticky != kSuccess) return sticky;
  if (fail_call_ == name && times >= fail_after_) return fail_code_;
  return kSuccess;
}

uint64_t Device::calls(const std::string& name) const {
  const auto found = calls_.find(name);
  return found == calls_.end() ? 0 : found->second;
}

void Device::note(const std::string& line) {
  if (log_path_.empty()) return;
  if (FILE* file = std::fopen(log_path_.c_str(), "a")) {
    std::fprintf(file, "%s\n", line.c_str());
    std::fclose(file);
  }
}

int Device::fail(int code, const std::string& message) {
  report = message;
  note("error " + std::to_string(code) + ": " + message);
  std::fprintf(stderr, "stand-in GPU: %s: %s\n", error_name(code), message.c_str());
  return code;
}

int Device::host_allocate(void** pointer, size_t size) {
  if (const int code = unsafe_call()) return code;
  void* memory = nullptr;
  if (posix_memalign(&memory, 4096, size == 0 ? 1 : size) != 0) return kMemoryAllocation;
  std::memset(memory, kUnwritten, size);
  pinned_[reinterpret_cast<uintptr_t>(memory)] = {size, static_cast<unsigned char*>(memory)};
  *pointer = memory;
  return kSuccess;
}

int Device::host_free(void* pointer) {
  if (pointer == nullptr) return kSuccess;
  if (const int code = unsafe_call()) return code;
  const auto found = pinned_.find(reinterpret_cast<uintptr_t>(pointer));
  if (found == pinned_.end()) {
    return fail(kInvalidValue, "cudaFreeHost of memory that cudaMallocHost did not give");
  }
  const int code = synchronize_all();
  std::free(found->second.second);
  pinned_.erase(found);
  return code;
}

bool Device::is_pinned(const void* pointer, size_t size) const {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  auto after = pinned_.upper_bound(address);
  if (after == pinned_.begin()) return false;
  --after;
  return address - after->first + size <= after->second.first;
}

const char* error_name(int code) {
  switch (code) {
    case kSuccess: return "cudaSuccess";
    case kInvalidValue: return "cudaErrorInvalidValue";
    case kMemoryAllocation: return "cudaErrorMemoryAllocation";
    case kInvalidConfiguration: return "cudaErrorInvalidConfiguration";
    case kInvalidMemcpyDirection: return "cudaErrorInvalidMemcpyDirection";
    case 35: return "cudaErrorInsufficientDriver";
    case kNoDevice: return "cudaErrorNoDevice";
    case kInvalidDevice: return "cudaErrorInvalidDevice";
    case kInvalidImage: return "cudaErrorInvalidKernelImage";
    case kNoBinaryForGpu: return "cudaErrorNoKernelImageForDevice";
    case kInvalidHandle: return "cudaErrorInvalidResourceHandle";
    case kNotFound: return "cudaErrorSymbolNotFound";
    case kNotReady: return "cudaErrorNotReady";
    case kIllegalAddress: return "cudaErrorIllegalAddress";
    case kLaunchOutOfResources: return "cudaErrorLaunchOutOfResources";
    case kMisalignedAddress: return "cudaErrorMisalignedAddress";
    case kLaunchFailed: return "cudaErrorLaunchFailure";
    case kNotSupported: return "cudaErrorNotSupported";
    case kCaptureUnsupported: return "cudaErrorStreamCaptureUnsupported";
    case kCaptureInvalidated: return "cudaErrorStreamCaptureInvalidated";
    case kCaptureUnmatched: return "cudaErrorStreamCaptureUnmatched";
    case kCaptureUnjoined: return "cudaErrorStreamCaptureUnjoined";
    case kCaptureIsolation: return "cudaErrorStreamCaptureIsolation";
    case kCaptureImplicit: return "cudaErrorStreamCaptureImplicit";
    case kCaptureWrongThread: return "cudaErrorStreamCaptureWrongThread";
    default: return "cudaErrorUnknown";
  }
}

const char* error_string(int code) {
  switch (code) {
    case kSuccess: return "no error";
    case kInvalidValue: return "invalid argument";
    case kMemoryAllocation: return "out of memory";
    case kInvalidConfiguration: return "invalid configuration argument";
    case kInvalidMemcpyDirection: return "invalid copy direction for memcpy";
    case 35: return "CUDA driver version is insufficient for CUDA runtime version";
    case kNoDevice: return "no CUDA-capable device is detected";
    case kInvalidDevice: return "invalid device ordinal";
    case kInvalidImage: return "device kernel image is invalid";
    case kNoBinaryForGpu: return "no kernel image is available for execution on the device";
    case kInvalidHandle: return "invalid resource handle";
    case kNotFound: return "named symbol not found";
    case kNotReady: return "device not ready";
    case kIllegalAddress: return "an illegal memory access was encountered";
    case kLaunchOutOfResources: return "too many resources requested for launch";
    case kMisalignedAddress: return "misaligned address";
    case kLaunchFailed: return "unspecified launch failure";
    case kNotSupported: return "operation not supported";
    case kCaptureUnsupported: return "operation not permitted when stream is capturing";
    case kCaptureInvalidated:
      return "operation failed due to a previous error during capture";
    case kCaptureUnmatched: return "capture was not initiated in this stream";
    case kCaptureUnjoined: return "capturing stream has unjoined work";
    case kCaptureIsolation: return "dependency created on uncaptured work in another stream";
    case kCaptureImplicit: return "operation would make the legacy stream depend on a capturing "
                                  "blocking stream";
    case kCaptureWrongThread:
      return "attempt to terminate a thread-local capture sequence from another thread";
    default: return "unknown error";
  }
}

}  // namespace on_host
