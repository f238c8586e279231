#pragma once

#include "arrays.h"

void bind_intern(nb::module_& module);
