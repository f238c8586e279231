#pragma once

#include "arrays.h"

void bind_unions(nb::module_& module);
