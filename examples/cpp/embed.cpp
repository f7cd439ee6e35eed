// Run a compiled model from several threads at once, and compare what they get.
//
//     ibert compile minilm.ibert --runtime none --prefix ibert -o model.so --seq-len 32,128
//     c++ -std=c++17 -O2 -I. examples/cpp/embed.cpp ./model.so -pthread -o embed
//     ./embed 101 7592 2088 102
//
// The library keeps no state: a context and an arena per thread are all that it takes.
#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "model.h" // written beside model.so

namespace {

void check(int32_t status, const char *what) {
    if (status != IBERT_OK) {
        throw std::runtime_error(std::string(what) + ": " + ibert_strerror(status));
    }
}

struct AlignedDelete {
    void operator()(uint8_t *memory) const {
        ::operator delete(memory, std::align_val_t(IBERT_ALIGNMENT));
    }
};

// A caller of the model; not to be shared by threads.
class Encoder {
  public:
    Encoder()
        : arena_(static_cast<uint8_t *>(
              ::operator new(IBERT_ARENA_BYTES, std::align_val_t(IBERT_ALIGNMENT)))) {
        check(ibert_init(&context_, IBERT_ABI_VERSION, IBERT_FINGERPRINT, arena_.get(), IBERT_ARENA_BYTES),
              "ibert_init");
    }

    // The first output for one text, as real numbers.
    std::vector<double> operator()(const std::vector<int32_t> &ids) {
        ibert_shape shape;
        check(ibert_find_shape(1, static_cast<int32_t>(ids.size()), &shape), "ibert_find_shape");
        std::vector<std::vector<int32_t>> arrays;
        std::vector<const void *> inputs;
        std::vector<std::size_t> input_bytes, output_bytes;
        for (int32_t i = 0; i < IBERT_NUM_INPUTS; i++) {
            arrays.push_back(filled(*ibert_input(i), ids, shape));
            inputs.push_back(arrays.back().data());
            input_bytes.push_back(arrays.back().size() * sizeof(int32_t));
        }
        std::vector<std::vector<int64_t>> memory; // of the largest type, so aligned for each
        std::vector<void *> outputs;
        for (int32_t i = 0; i < IBERT_NUM_OUTPUTS; i++) {
            memory.emplace_back(entries(*ibert_output(i), shape));
            outputs.push_back(memory.back().data());
            output_bytes.push_back(memory.back().size() * sizeof(int64_t));
        }
        check(ibert_run(&context_, shape.batch, shape.seq_len, inputs.data(), input_bytes.data(),
                        outputs.data(), output_bytes.data()),
              "ibert_run");
        return real(*ibert_output(0), outputs[0], entries(*ibert_output(0), shape));
    }

  private:
    static std::size_t entries(const ibert_tensor &tensor, const ibert_shape &shape) {
        std::size_t count = 1;
        for (int32_t axis = 0; axis < tensor.rank; axis++) {
            const int32_t size = tensor.shape[axis];
            count *= static_cast<std::size_t>(size == IBERT_BATCH     ? shape.batch
                                              : size == IBERT_SEQ_LEN ? shape.seq_len
                                                                      : size);
        }
        return count;
    }

    // An input of token ids, or of what goes with them, filled up to the compiled length.
    static std::vector<int32_t> filled(const ibert_tensor &tensor, const std::vector<int32_t> &ids,
                                       const ibert_shape &shape) {
        std::vector<int32_t> values(entries(tensor, shape), 0);
        const std::string name = tensor.name;
        if (name == "input_ids") {
            values.assign(values.size(), IBERT_PAD_TOKEN_ID);
            std::copy(ids.begin(), ids.end(), values.begin());
        } else if (name == "attention_mask") {
            std::fill_n(values.begin(), ids.size(), 1);
        }
        return values;
    }

    template <typename T>
    static std::vector<double> scaled(const void *values, std::size_t count, double scale) {
        const T *first = static_cast<const T *>(values);
        std::vector<double> result(first, first + count);
        for (double &value : result) {
            value *= scale;
        }
        return result;
    }

    static std::vector<double> real(const ibert_tensor &tensor, const void *values,
                                    std::size_t count) {
        const double scale = std::strtod(tensor.scale, nullptr);
        switch (tensor.type) {
        case IBERT_INT8:
            return scaled<int8_t>(values, count, scale);
        case IBERT_UINT8:
            return scaled<uint8_t>(values, count, scale);
        case IBERT_INT16:
            return scaled<int16_t>(values, count, scale);
        case IBERT_INT32:
            return scaled<int32_t>(values, count, scale);
        default:
            return scaled<int64_t>(values, count, scale);
        }
    }

    ibert_context context_;
    std::unique_ptr<uint8_t, AlignedDelete> arena_;
};

} // namespace

int main(int argc, char **argv) {
    std::vector<int32_t> ids;
    for (int i = 1; i < argc; i++) {
        ids.push_back(std::atoi(argv[i]));
    }
    if (ids.empty()) {
        std::cerr << "usage: " << argv[0] << " ID [ID ...]\n";
        return 2;
    }
    try {
        const std::vector<double> expected = Encoder()(ids);
        std::vector<std::vector<double>> results(4);
        std::vector<std::string> failures(results.size());
        std::vector<std::thread> threads;
        for (std::size_t i = 0; i < results.size(); i++) {
            threads.emplace_back([&, i] {
                try {
                    results[i] = Encoder()(ids);
                } catch (const std::exception &error) {
                    failures[i] = error.what();
                }
            });
        }
        for (std::thread &thread : threads) {
            thread.join();
        }
        for (std::size_t i = 0; i < results.size(); i++) {
            if (results[i] != expected) {
                std::cerr << "thread " << i << " differs: " << failures[i] << '\n';
                return EXIT_FAILURE;
            }
        }
        std::cout << ibert_output(0)->name << ", the same from " << results.size()
                  << " threads:\n";
        for (std::size_t k = 0; k < expected.size() && k < 8; k++) {
            std::cout << "  " << expected[k] << '\n';
        }
    } catch (const std::exception &error) {
        std::cerr << error.what() << '\n';
        return EXIT_FAILURE;
    }
    return EXIT_SUCCESS;
}
