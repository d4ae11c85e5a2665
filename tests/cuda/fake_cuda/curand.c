/* libcurand.so.10: the CUDA provider links the library but none of its functions. */

const char fake_curand[] = "fake";
