package storage

import (
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
)

// versioner is upstream's, except that an unreadable resourceVersion in an object is the client's error (400).
type versioner struct{ storage.APIObjectVersioner }

// ObjectResourceVersion implements storage.Versioner.
func (v versioner) ObjectResourceVersion(obj runtime.Object) (uint64, error) {
	n, err := v.APIObjectVersioner.ObjectResourceVersion(obj)
	if err != nil {
		return 0, apierrors.NewBadRequest(fmt.Sprintf("invalid resource version: %v", err))
	}
	return n, nil
}
