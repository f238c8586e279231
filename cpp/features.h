#pragma once

#include "arrays.h"

void bind_features(nb::module_& module);
