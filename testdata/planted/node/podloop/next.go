// Package podloop reads files and knows the runtime.
package podloop

import (
	_ "os"

	_ "k8s.io/cri-api/pkg/apis"
)
