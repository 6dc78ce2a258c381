package node

import (
	"context"

	"k8s.io/apimachinery/pkg/types"
)

func (a *Agent) static(ctx context.Context) {}

func (a *Agent) keepsStatic(uid types.UID) bool { return false }
