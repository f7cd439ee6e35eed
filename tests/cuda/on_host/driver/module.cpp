// Modules and launches. An image is a shared library that g++ made from CUDA source
// (tests/cuda/kernel_source.py), or several of them for different architectures.
#include <dlfcn.h>
#include <elf.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "check.h"
#include "device.h"

namespace on_host {
namespace {

// Several images: this text, their number, and for each its capability, offset and size.
constexpr char kBundle[] = "on_host bundle";

struct BundleEntry {
  uint64_t capability, offset, size;
};

bool is_elf(const unsigned char* image) {
  return std::memcmp(image, ELFMAG, SELFMAG) == 0 && image[EI_CLASS] == ELFCLASS64;
}

// A driver is not told how long an image is: an ELF file ends behind its last part.
size_t elf_size(const unsigned char* image) {
  Elf64_Ehdr header;
  std::memcpy(&header, image, sizeof header);
  size_t end = header.e_shoff + size_t{header.e_shentsize} * header.e_shnum;
  for (unsigned i = 0; i < header.e_shnum; ++i) {
    Elf64_Shdr section;
    std::memcpy(&section, image + header.e_shoff + size_t{header.e_shentsize} * i, sizeof section);
    if (section.sh_type == SHT_NOBITS) continue;
    end = std::max<size_t>(end, section.sh_offset + section.sh_size);
  }
  return end;
}

void* open_library(const unsigned char* image, size_t size) {
  const int file = memfd_create("on_host_kernels", MFD_CLOEXEC);
  if (file < 0) return nullptr;
  void* handle = nullptr;
  if (write(file, image, size) == static_cast<ssize_t>(size)) {
    const std::string path = "/proc/self/fd/" + std::to_string(file);
    handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  }
  // Left open: the dynamic linker takes a second library of the same path for the first.
  return handle;
}

}  // namespace

int Device::load(const void* data, Module*& module) {
  const auto* image = static_cast<const unsigned char*>(data);
  if (std::memcmp(image, kBundle, sizeof kBundle) == 0) {
    uint64_t count;
    std::memcpy(&count, image + 16, sizeof count);
    uint64_t best = 0;
    const unsigned char* found = nullptr;
    for (uint64_t i = 0; i < count; ++i) {
      BundleEntry entry;
      std::memcpy(&entry, image + 24 + i * sizeof entry, sizeof entry);
      // Machine code runs on its own major version, from its minor version on.
      const bool major = entry.capability / 10 == properties.capability / 10;
      if (major && entry.capability <= properties.capability && entry.capability >= best) {
        best = entry.capability;
        found = image + entry.offset;
      }
    }
    if (found == nullptr) {
      return fail(kNoBinaryForGpu,
                  "no image for capability " + std::to_string(properties.capability));
    }
    image = found;
  }
  if (!is_elf(image)) return fail(kInvalidImage, "an image that was not made for the stand-in GPU");
  Elf64_Ehdr header;
  std::memcpy(&header, image, sizeof header);
  constexpr unsigned kMachineCuda = 190;
  if (header.e_machine == kMachineCuda) {
    return fail(kInvalidImage, "a cubin, which only a GPU runs");
  }
  auto loaded = std::make_unique<Module>();
  loaded->handle = open_library(image, elf_size(image));
  if (loaded->handle == nullptr) {
    const char* why = dlerror();
    return fail(kInvalidImage, why ? why : "an image that cannot be loaded");
  }
  loaded->image = static_cast<const Image*>(dlsym(loaded->handle, "on_host_image"));
  if (loaded->image == nullptr || loaded->image->abi_version != kAbiVersion) {
    dlclose(loaded->handle);
    return fail(kInvalidImage, "an image of another version of the stand-in GPU");
  }
  if (loaded->image->architecture / 10 != properties.capability / 10 ||
      loaded->image->architecture > properties.capability) {
    const std::string text = "an image for capability " +
                             std::to_string(loaded->image->architecture) + " on one of " +
                             std::to_string(properties.capability);
    dlclose(loaded->handle);
    return fail(kNoBinaryForGpu, text);
  }
  for (unsigned i = 0; i < loaded->image->num_kernels; ++i) {
    const Kernel& kernel = loaded->image->kernels[i];
    auto function = std::make_unique<Function>();
    function->kernel = &kernel;
    function->module = loaded.get();
    function->max_dynamic_shared = properties.shared_default;
    loaded->functions[kernel.name] = std::move(function);
  }
  note("load " + std::to_string(loaded->functions.size()) + " kernels");
  module = loaded.release();
  return kSuccess;
}

int Device::prepare(const Function* function, Index grid, Index block, unsigned dynamic_shared,
                    void** arguments, Operation& operation) {
  const Kernel& kernel = *function->kernel;
  const uint64_t threads = uint64_t{1} * block.x * block.y * block.z;
  const auto refuse = [&](int code, const std::string& why) {
    return fail(code, std::string("kernel ") + kernel.name + ": " + why);
  };
  if (threads == 0 || threads > kMaxThreads || block.z > 64) {
    return refuse(kInvalidValue, "a block of " + std::to_string(threads) + " threads");
  }
  if (kernel.max_threads != 0 && threads > kernel.max_threads) {
    return refuse(kLaunchOutOfResources, "more threads than __launch_bounds__ says");
  }
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 0x7fffffffu || grid.y > 65535 ||
      grid.z > 65535) {
    return refuse(kInvalidValue, "a grid of a size that is not allowed");
  }
  if (dynamic_shared > function->max_dynamic_shared) {
    return refuse(kInvalidValue, std::to_string(dynamic_shared) +
                                     " bytes of dynamic shared memory, and " +
                                     std::to_string(function->max_dynamic_shared) + " are allowed");
  }
  operation.kind = Operation::kKernel;
  operation.function = function;
  operation.grid = grid;
  operation.block = block;
  operation.dynamic_shared = dynamic_shared;
  operation.arguments.resize(kernel.num_arguments * kArgumentSize);
  for (unsigned i = 0; i < kernel.num_arguments; ++i) {
    if (kernel.sizes[i] > kArgumentSize) return refuse(kInvalidValue, "an argument of many bytes");
    std::memcpy(&operation.arguments[i * kArgumentSize], arguments[i], kernel.sizes[i]);
  }
  return kSuccess;
}

int Device::launch(const Function* function, Index grid, Index block, unsigned dynamic_shared,
                   Stream* stream, void** arguments) {
  Operation operation;
  const int code = prepare(function, grid, block, dynamic_shared, arguments, operation);
  return code != kSuccess ? code : submit(stream, std::move(operation));
}

int Device::execute_kernel(const Operation& operation) {
  const Kernel& kernel = *operation.function->kernel;
  std::vector<unsigned char> values = operation.arguments;
  std::vector<void*> addresses;
  for (unsigned i = 0; i < kernel.num_arguments; ++i) {
    unsigned char* value = &values[i * kArgumentSize];
    addresses.push_back(value);
    if (!kernel.is_pointer[i]) continue;
    uintptr_t address;
    std::memcpy(&address, value, sizeof address);
    if (address == 0) continue;
    if (memory->find(address, 0) == nullptr) {
      const bool freed = memory->in_window(address);
      return fail(kIllegalAddress, std::string("kernel ") + kernel.name + ": argument " +
                                       std::to_string(i) + " is " +
                                       (freed ? "memory that has been freed" : "a host pointer"));
    }
    void* translated = memory->translate(address);
    std::memcpy(value, &translated, sizeof translated);
  }
  ++calls_["kernel"];
  calls_["block"] += uint64_t{1} * operation.grid.x * operation.grid.y * operation.grid.z;
  note(std::string("kernel ") + kernel.name);
  Launch launch;
  launch.kernel = &kernel;
  launch.grid = operation.grid;
  launch.block = operation.block;
  launch.dynamic_shared = operation.dynamic_shared;
  launch.shared_limit = static_cast<unsigned>(
      std::max(properties.shared_default, operation.function->max_dynamic_shared));
  launch.arguments = addresses.data();
  start_checks(*operation.function->module->image, kernel, *memory);
  const Failure failure = run(launch, order);
  return failure.code == 0 ? kSuccess : fail(failure.code, failure.message);
}

}  // namespace on_host
