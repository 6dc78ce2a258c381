// Package leader reaches sideways and into upstream.
package leader

import (
	_ "github.com/balsahq/balsa/raftstore"
	_ "k8s.io/kubernetes/pkg/controller/deployment"
)
