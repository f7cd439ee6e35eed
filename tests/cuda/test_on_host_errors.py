"""What a GPU does not forgive, and may not show either, is an error of the stand-in GPU."""

import ctypes
import sys

import numpy as np
import pytest

from tests.arm.tools import needs
from tests.cuda.kernel_image import KernelSourceError, bundle, kernel_image
from tests.cuda.stand_in_gpu import StandInGpuError, environment, load, run_cuda
from tests.processes import run_captured

NUMBERS = np.arange(64, dtype=np.int32)
NEVER_WRITTEN = np.int32(-1515870811)  # 0xa5a5a5a5
PLACE = "kernel run, block (0, 0, 0), thread ({}, 0, 0): "


@pytest.fixture(autouse=True)
def _compiler():
    needs("g++")


def kernel(body: str, parameters: str = "int* a") -> str:
    """A kernel, whose body starts at line 100."""
    head = f'#include "primitives.cuh"\nextern "C" __global__ void run({parameters}) {{'
    return f"{head}\n#line 100\n{body}\n}}\n"


def failure(body: str, *arguments, parameters: str = "int* a", **options) -> str:
    """The message of a kernel that must fail."""
    with pytest.raises(StandInGpuError) as caught:
        run_cuda(kernel(body, parameters), arguments or [NUMBERS], **options)
    return str(caught.value)


def test_missing_barrier():
    body = """
    __shared__ int s[64];
    s[threadIdx.x] = a[threadIdx.x];
    BARRIER
    a[threadIdx.x] = s[63 - threadIdx.x];
    """
    for observed in (False, True):
        source = kernel(body.replace("BARRIER", "__syncthreads();"))
        [result] = run_cuda(source, [NUMBERS], block=(64,), observed=observed)
        np.testing.assert_array_equal(result, NUMBERS[::-1])
    [result] = run_cuda(kernel(body.replace("BARRIER", "")), [NUMBERS], block=(64,))
    assert result[0] == NEVER_WRITTEN
    message = failure(body.replace("BARRIER", ""), block=(64,), observed=True)
    assert message == PLACE.format(0) + (
        "shared memory at byte 252 is read by thread 0, and nobody has written it"
    )


@pytest.mark.slow
def test_missing_barrier_before_memory_is_used_again():
    body = """
    __shared__ int s[64];
    for (int i = 0; i < 2; ++i) {
      s[threadIdx.x] = a[threadIdx.x] + i;
      __syncthreads();
      a[threadIdx.x] = s[63 - threadIdx.x];
      BARRIER
    }
    """
    good, bad = body.replace("BARRIER", "__syncthreads();"), body.replace("BARRIER", "")
    [result] = run_cuda(kernel(good), [NUMBERS], block=(64,), observed=True)
    np.testing.assert_array_equal(result, NUMBERS + 1)
    [result] = run_cuda(kernel(bad), [NUMBERS], block=(64,))
    assert not np.array_equal(result, NUMBERS + 1)
    assert failure(bad, block=(64,), observed=True) == PLACE.format(32) + (
        "race in shared memory at byte 124: thread 32 reads what thread 31 wrote, "
        "with no barrier between"
    )
    # The same memory, written by one thread while another one has just read it.
    body = """
    __shared__ int s[64];
    s[threadIdx.x] = 1;
    __syncthreads();
    if (threadIdx.x == 0) a[0] = s[63];
    if (threadIdx.x == 63) s[63] = 2;
    """
    assert failure(body, block=(64,), observed=True) == PLACE.format(63) + (
        "race in shared memory at byte 252: thread 63 overwrites what another thread read, "
        "with no barrier between"
    )


def test_a_warp_needs_its_barrier_too():
    body = """
    __shared__ int s[32];
    s[threadIdx.x] = a[threadIdx.x];
    BARRIER
    a[threadIdx.x] = s[31 - threadIdx.x] + __shfl_sync(0xffffffff, 1, 0);
    """
    [result] = run_cuda(
        kernel(body.replace("BARRIER", "__syncwarp();")), [NUMBERS[:32]], observed=True
    )
    np.testing.assert_array_equal(result, NUMBERS[:32][::-1] + 1)
    message = failure(body.replace("BARRIER", ""), NUMBERS[:32], observed=True)
    assert "nobody has written it" in message


@pytest.mark.parametrize(
    ("body", "block", "thread", "why"),
    [
        (
            "if (threadIdx.x < 32)\n__syncthreads(); else\n__syncthreads();",
            64,
            32,
            "threads of a block meet at different barriers: __syncthreads of line 102, while "
            "others wait at that of line 101",
        ),
        (
            "if (threadIdx.x < 16) __syncthreads();\nelse __syncwarp();",
            32,
            31,
            "no thread can go on: thread 0 at __syncthreads (line 100); thread 16 at __syncwarp "
            "(line 101)",
        ),
        (
            "if (threadIdx.x < 16) a[threadIdx.x] = __shfl_sync(0xffffffff, 1, 0);\n"
            "else __syncwarp();",
            32,
            16,
            "lanes of a warp diverge: __syncwarp (line 101, mask ffffffff) while others wait at "
            "__shfl_sync (line 100, mask ffffffff)",
        ),
    ],
    ids=["different barriers", "one waits for another", "different operations"],
)
def test_threads_that_meet_nowhere(body, block, thread, why):
    assert failure(body, block=(block,)) == PLACE.format(thread) + why


def test_threads_that_returned_do_not_hold_a_barrier_up():
    source = kernel("if (threadIdx.x >= 32) return; __syncthreads(); a[threadIdx.x] = 5;")
    [result] = run_cuda(source, [NUMBERS], block=(64,))
    assert (result[:32] == 5).all()


def test_lanes_with_different_masks():
    body = "a[threadIdx.x] = __shfl_sync(threadIdx.x < 16 ? 0xffff : 0xffffffff, 1, 0);"
    assert "takes a shuffled value from lane 0, which does not take part" in failure(body)
    body = "a[threadIdx.x] = __shfl_sync(0xffff, 1, 0);"
    assert failure(body) == PLACE.format(16) + (
        "__shfl_sync (line 100) with a mask 0000ffff that lacks the lane itself"
    )


def test_halves_of_a_warp_may_go_their_own_ways():
    body = """
    const bool upper = threadIdx.x >= 16;
    int sum = threadIdx.x;
    for (int i = 8; i > (upper ? 2 : 0); i /= 2)
      sum += __shfl_xor_sync(upper ? 0xffff0000 : 0xffff, sum, i, 16);
    a[threadIdx.x] = sum;
    """
    [result] = run_cuda(kernel(body), [NUMBERS[:32]])
    assert (result[:16] == 120).all()
    np.testing.assert_array_equal(result[16:20], [16 + 20 + 24 + 28 + 4 * i for i in range(4)])


def test_a_lane_that_does_not_take_part():
    assert failure("a[threadIdx.x] = __shfl_sync(0xff, 1, 9);", block=(8,)) == PLACE.format(7) + (
        "lane 0 takes a shuffled value from lane 9, which does not take part"
    )


def test_a_lane_that_returned():
    body = "if (threadIdx.x == 31) return;\n__syncwarp();"
    assert failure(body) == PLACE.format(31) + (
        "thread 31 returned while lanes of its warp wait for it at __syncwarp (line 101)"
    )


def test_matrix_operations_take_whole_warps():
    body = """
    int32_t c[4] = {}; uint32_t a4[4] = {}, b2[2] = {};
    ibert::mma_16x8x32<int8_t>(c, a4, b2);
    """
    message = failure(body, block=(48,))
    assert message.startswith(
        PLACE.format(32) + "mma (line 102) in a warp of which lanes are missing"
    )


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            "a[0] = *reinterpret_cast<long long*>(a + 1);",
            "read of 8 bytes at an address that is no multiple of that",
        ),
        ("a[64] = 1;", "write of 4 bytes outside of every allocation of device memory"),
        (
            "__shared__ int s[4]; s[threadIdx.x + 1] = 0; __syncthreads(); a[0] = s[0];",
            "write of 4 bytes outside of every __shared__ variable: at byte 16 of 16",
        ),
    ],
    ids=["misaligned", "device memory", "shared memory"],
)
def test_observed_access(body, message):
    where = 3 if "__shared__" in body else 0
    assert failure(body, block=(4,), observed=True) == PLACE.format(where) + message


@pytest.mark.parametrize(
    ("operation", "message"),
    [
        ("ldmatrix_x1(r, at + 8)", "ldmatrix of lane 0 at an address that is no multiple of 16"),
        (
            "ldmatrix_x1(r, at + 16 * threadIdx.x + 400)",
            "ldmatrix of 16 bytes outside of every __shared__ variable: at byte 512 of 512",
        ),
        (
            "copy16_async(at + 512, a, true)",
            "st.shared.v4 of 16 bytes outside of every __shared__ variable: at byte 512 of 512",
        ),
        ("load_shared16(at + 4)", "ld.shared.v4 of lane 0 at an address that is no multiple of 16"),
    ],
)
def test_primitives_check_addresses(operation, message):
    body = f"""
    __shared__ __align__(16) int s[128];
    uint32_t r[1];
    const auto at = ibert::shared_address(s);
    ibert::{operation};
    a[0] = r[0];
    """
    assert failure(body).endswith(": " + message)


COPY = """
    __shared__ __align__(16) int s[64];
    ibert::copy16_async(ibert::shared_address(s + 4 * threadIdx.x), a + 4 * threadIdx.x, true);
    ibert::commit_copies();
    WAIT
    BARRIER
    const int value = s[(4 * threadIdx.x + 20) % 64];
    __syncthreads();
    a[threadIdx.x] = value;
"""


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 90])
def test_asynchronous_copies(capability):
    def body(wait: str, barrier: str) -> str:
        return COPY.replace("WAIT", wait).replace("BARRIER", barrier)

    wait, barrier = "ibert::wait_copies<0>();", "__syncthreads();"
    for order in ("forward", "reverse", 5):
        with load().order(order):
            [result] = run_cuda(
                kernel(body(wait, barrier)),
                [NUMBERS],
                block=(16,),
                capability=capability,
                observed=True,
            )
        np.testing.assert_array_equal(result[:16], (4 * np.arange(16) + 20) % 64)
    options = {"block": (16,), "capability": capability}
    # Without the wait nothing has arrived, and without the barrier nothing of the others.
    [result] = run_cuda(kernel(body("", barrier)), [NUMBERS], **options)
    assert (result[:16] == NEVER_WRITTEN).all()
    assert "is read by thread 0 before the copy to it was waited for" in failure(
        body("", barrier), observed=True, **options
    )
    [result] = run_cuda(kernel(body(wait, "")), [NUMBERS], **options)
    assert result[0] == NEVER_WRITTEN
    assert "shared memory at byte 80 is read by thread 0" in failure(
        body(wait, ""), observed=True, **options
    )


def test_copies_of_the_latest_groups_stay_under_way():
    body = """
    __shared__ __align__(16) int s[12];
    for (int i = 0; i < 3; ++i) {
      ibert::copy16_async(ibert::shared_address(s + 4 * i), a + 4 * i, i != 1);
      ibert::commit_copies();
    }
    ibert::wait_copies<1>();
    for (int i = 0; i < 12; ++i) a[16 + i] = s[i];
    """
    [result] = run_cuda(kernel(body), [NUMBERS], block=(1,), capability=80)
    np.testing.assert_array_equal(result[16:28], [0, 1, 2, 3, *[0] * 4, *[NEVER_WRITTEN] * 4])


def test_race_of_blocks():
    body = "a[0] = blockIdx.x;"
    assert failure(body, grid=(2,), block=(1,), observed=True) == (
        "kernel run, block (1, 0, 0), thread (0, 0, 0): race in device memory at byte 0: thread 0 "
        "overwrites what thread 0 of another block wrote, with no barrier between"
    )
    [result] = run_cuda(kernel("atomicAdd(a, 3);"), [NUMBERS], (5,), observed=True)
    assert result[0] == 5 * 32 * 3


def test_write_behind_an_allocation_is_found_without_observation():
    assert failure("a[threadIdx.x] = 1;", block=(65,)) == (
        "something wrote 0 bytes behind the end of an allocation of 256 bytes"
    )


def test_host_pointer():
    memory = np.zeros(4, np.int32)
    message = failure("a[0] = 1;", np.uint64(memory.ctypes.data))
    assert message == "kernel run: argument 0 is a host pointer"
    assert (memory == 0).all()


def test_no_memory_at_all():
    assert failure("*reinterpret_cast<int*>(8 + a[0]) = 1;") == PLACE.format(0) + (
        "access to address 0x8, which is no memory of the device"
    )


def test_an_error_stays_until_the_process_ends():
    gpu = load()
    with pytest.raises(StandInGpuError):
        run_cuda(kernel("*reinterpret_cast<int*>(8 + a[0]) = 1;"), [NUMBERS])
    image = kernel_image(kernel("*reinterpret_cast<int*>(8 + a[0]) = 1;"), 75)
    module, function, address = (ctypes.c_void_p() for _ in range(3))
    assert gpu.cuda.cuModuleLoadData(ctypes.byref(module), image) == 0
    assert gpu.cuda.cuModuleGetFunction(ctypes.byref(function), module, b"run") == 0
    assert gpu.cudart.cudaMalloc(ctypes.byref(address), ctypes.c_size_t(256)) == 0
    pointers = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.pointer(address), ctypes.c_void_p))
    launched = gpu.cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, None, pointers, None)
    try:
        assert launched == 0  # a launch does not wait
        assert gpu.cudart.cudaStreamSynchronize(None) == 700
        assert gpu.cudart.cudaMalloc(ctypes.byref(address), ctypes.c_size_t(256)) == 700
        assert gpu.cudart.cudaGetLastError() == 700
    finally:
        gpu.reset()
    assert gpu.cudart.cudaFree(address) == 0


@pytest.mark.slow
def test_limits_of_launches():
    plain = "a[0] = 1;"
    assert failure(plain, block=(1025,)) == "kernel run: a block of 1025 threads"
    assert failure(plain, grid=(1, 65536)) == "kernel run: a grid of a size that is not allowed"
    source = 'extern "C" __global__ void __launch_bounds__(64) run(int* a) { a[0] = 1; }'
    with pytest.raises(StandInGpuError, match="more threads than __launch_bounds__ says"):
        run_cuda(source, [NUMBERS], block=(96,))
    dynamic = "extern __shared__ int s[]; s[threadIdx.x] = 1; a[0] = s[0];"
    for capability, most in ((75, 64 << 10), (80, 163 << 10), (90, 227 << 10)):
        run_cuda(kernel(dynamic), [NUMBERS], dynamic_shared=most, capability=capability)
        assert failure(dynamic, dynamic_shared=most + 1, capability=capability) == (
            f"{most + 1} bytes of dynamic shared memory, and {most} are the most of this device"
        )
    both = (
        "__shared__ char t[1024]; extern __shared__ int s[]; s[0] = t[0] = 1; a[0] = s[0] + t[0];"
    )
    message = failure(both, dynamic_shared=64 << 10)
    assert message.endswith("a block of 66560 bytes of shared memory, and 65536 are allowed")


def test_images():
    source = kernel("a[0] = __CUDA_ARCH__;")
    gpu = load()
    module = ctypes.c_void_p()

    def load_image(image: bytes) -> str:
        code = gpu.cuda.cuModuleLoadData(ctypes.byref(module), image)
        return f"{code} {gpu.report}" if code else "0"

    for capability in (75, 80, 90):
        [result] = run_cuda(source, [NUMBERS], capability=capability)
        assert result[0] == 10 * capability
    images = bundle([(number, kernel_image(source, number)) for number in (75, 80)])
    for capability, answer in (
        (75, "0"),
        (80, "0"),
        (86, "0"),
        (90, "209 no image for capability 90"),
    ):
        gpu.become(capability)
        assert load_image(images) == answer
    gpu.become(75)
    wrong = "209 an image for capability 80 on one of 75"
    assert load_image(kernel_image(source, 80)) == wrong
    assert load_image(b"P" * 64).startswith("200 an image that was not made for the stand-in GPU")


@pytest.mark.parametrize(
    "text", ["__shared__ int s[4], t[4];", "__shared__ int s = 3;"], ids=["two", "initialised"]
)
def test_shared_memory_that_cannot_be_read(text):
    with pytest.raises(KernelSourceError, match="cannot read the declaration of shared memory"):
        kernel_image(kernel(text), 75)


def test_source_without_kernel():
    with pytest.raises(KernelSourceError, match="no kernel"):
        kernel_image("int a;", 75)


def test_host_cannot_read_device_memory():
    program = """
import ctypes
cudart = ctypes.CDLL("libcudart.so.13")
address = ctypes.c_void_p()
assert cudart.cudaMalloc(ctypes.byref(address), ctypes.c_size_t(64)) == 0
print("allocated", flush=True)
print(ctypes.string_at(address, 4), flush=True)
"""
    done = run_captured([sys.executable, "-c", program], env=environment())
    assert (done.stdout, done.returncode) == ("allocated\n", -11)
