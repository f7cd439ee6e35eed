// Included by TVM's generated source as CUDA's driver header.
#pragma once

#include "built_ins.h"

using uint = unsigned int;
using uchar = unsigned char;
using ushort = unsigned short;
