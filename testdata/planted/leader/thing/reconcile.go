// Package thing asks for the time and for the API.
package thing

import (
	"time"

	_ "k8s.io/client-go/kubernetes"
)

var started = time.Now()
