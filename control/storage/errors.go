package storage

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage"
	utilfeature "k8s.io/apiserver/pkg/util/feature"

	"github.com/balsahq/balsa/raftstore"
)

var (
	// ErrFenced: the write was made under a leadership (WithFence) that has ended. Nothing was written. The API answers
	// 409 Conflict.
	ErrFenced = errors.New("leadership has ended")
	// ErrExtraCompare: a compare of Extras did not hold; errors.As to *ExtraCompareError says which one. Nothing was
	// written. The API answers 409 Conflict.
	ErrExtraCompare = errors.New("a condition of the write did not hold")
)

// ExtraCompareError names the compare of Extras that did not hold.
type ExtraCompareError struct {
	*apierrors.StatusError
	// Index is the position of Compare in Extras.Compares.
	Index   int
	Compare raftstore.Compare
	// Current is the content of the compared key or range at that moment.
	Current []*raftstore.KeyValue
}

// Is makes errors.Is(err, ErrExtraCompare) true.
func (e *ExtraCompareError) Is(target error) bool { return target == ErrExtraCompare }

func newExtraCompareError(i int, c raftstore.Compare, current []*raftstore.KeyValue) error {
	message := fmt.Sprintf("%v: %q was changed or taken meanwhile", ErrExtraCompare, c.Key)
	return &ExtraCompareError{
		StatusError: conflict(message, "StoreCompareFailed"),
		Index:       i, Compare: c, Current: current,
	}
}

// fencedError is ErrFenced as an API error.
type fencedError struct{ *apierrors.StatusError }

// Is makes errors.Is(err, ErrFenced) true.
func (fencedError) Is(target error) bool { return target == ErrFenced }

// newFencedError names the leadership's key and epoch. current is empty when no process holds the leadership now.
func newFencedError(fence raftstore.Compare, current []*raftstore.KeyValue) error {
	now := "no process holds it now"
	if len(current) > 0 {
		now = fmt.Sprintf("the epoch is now %d", current[0].CreateRevision)
	}
	message := fmt.Sprintf("%v: leadership %q of epoch %d; %s", ErrFenced, fence.Key, fence.Int, now)
	return fencedError{conflict(message, "LeadershipEnded")}
}

// versionedError is storage.ErrResourceVersionSetOnCreate as an API error: 400, because the client set the version.
type versionedError struct{ *apierrors.StatusError }

// Is makes errors.Is(err, storage.ErrResourceVersionSetOnCreate) true.
func (versionedError) Is(target error) bool { return target == storage.ErrResourceVersionSetOnCreate }

func conflict(message string, cause metav1.CauseType) *apierrors.StatusError {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status:  metav1.StatusFailure,
		Code:    http.StatusConflict,
		Reason:  metav1.StatusReasonConflict,
		Message: message,
		Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: cause, Message: message}}},
	}}
}

// Messages of 410 Gone. The texts are upstream's: clients and tests compare them.
const (
	watchExpired    = "The resourceVersion for the provided watch is too old."
	listExpired     = "The resourceVersion for the provided list is too old."
	continueExpired = "The provided continue parameter is too old to display a consistent list result. " +
		"You can start a new list without the continue parameter"
	continueInconsistent = continueExpired + ", or use the continue token in this response to " +
		"retrieve the remainder of the results. Continuing with the provided token results in an " +
		"inconsistent list - objects that were created, modified, or deleted between the time the " +
		"first chunk was returned and now may show up in the list."
)

// storeError converts an error of the store to the API's answer. It returns unknown errors unchanged.
func storeError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, raftstore.ErrNoLeader), errors.Is(err, raftstore.ErrClosed):
		return status(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, err, 1)
	case errors.Is(err, raftstore.ErrTooLarge):
		return status(http.StatusRequestEntityTooLarge, metav1.StatusReasonRequestEntityTooLarge, err, 0)
	case errors.Is(err, raftstore.ErrDiskFull), errors.Is(err, raftstore.ErrDiskReadOnly):
		return status(http.StatusInsufficientStorage, "InsufficientStorage", err, 0) // no Retry-After: an administrator has to act, and should see the reason at once
	case errors.Is(err, raftstore.ErrDisk), errors.Is(err, raftstore.ErrCorrupt):
		return status(http.StatusInternalServerError, metav1.StatusReasonInternalError, err, 0)
	case errors.Is(err, raftstore.ErrCompacted), errors.Is(err, raftstore.ErrOverrun):
		return apierrors.NewResourceExpired(watchExpired)
	case errors.Is(err, context.Canceled): // the client has left; an error that is no Status would be logged as a fault of the server
		return status(http.StatusGatewayTimeout, metav1.StatusReasonTimeout, err, 0)
	case errors.Is(err, context.DeadlineExceeded):
		return status(http.StatusGatewayTimeout, metav1.StatusReasonTimeout, err, 1)
	}
	return err
}

func status(code int32, reason metav1.StatusReason, err error, retrySeconds int32) error {
	s := metav1.Status{Status: metav1.StatusFailure, Code: code, Reason: reason, Message: err.Error()}
	if retrySeconds > 0 {
		s.Details = &metav1.StatusDetails{RetryAfterSeconds: retrySeconds}
	}
	return &storeStatusError{StatusError: &apierrors.StatusError{ErrStatus: s}, err: err}
}

// storeStatusError is an API error that wraps the store's error.
type storeStatusError struct {
	*apierrors.StatusError
	err error
}

// Unwrap lets errors.Is find the store's error; errors.As finds the API error first.
func (e *storeStatusError) Unwrap() error { return e.err }

// corruptError: the stored bytes of an object cannot be decrypted or decoded.
type corruptError struct {
	key       string
	revision  int64
	transform bool
	err       error
}

func (e *corruptError) Error() string {
	what := "object not decodable"
	if e.transform {
		what = "data from the storage is not transformable"
	}
	return fmt.Sprintf("%s: key %q revision=%d: %v", what, e.key, e.revision, e.err)
}

func (e *corruptError) Unwrap() error { return e.err }

// unsafeDeletion reports whether corrupt objects may be deleted unread. Errors then name the objects, so that the
// registry can offer the deletion.
func unsafeDeletion() bool {
	return utilfeature.DefaultFeatureGate.Enabled(features.AllowUnsafeMalformedObjectDeletion)
}

// readError returns the API's error for a failure to read one object.
func readError(err error) error {
	var corrupt *corruptError
	switch {
	case !errors.As(err, &corrupt):
		return storeError(err)
	case corrupt.transform:
		return storage.NewInternalError(corrupt)
	}
	return corrupt.err
}

// getError is readError for Get. Where unsafe deletion is allowed, it tells the registry that the object is corrupt.
func getError(err error) error {
	var corrupt *corruptError
	if unsafeDeletion() && errors.As(err, &corrupt) {
		return storage.NewCorruptObjError(corrupt.key, corrupt)
	}
	return readError(err)
}

// WatchStatus returns the status in the error event that ends a watch.
func WatchStatus(err error) *metav1.Status {
	var known apierrors.APIStatus
	if !errors.As(storeError(err), &known) {
		known = apierrors.NewInternalError(err)
	}
	s := known.Status()
	return &s
}

// corruptDeletedError is the error of a watch that cannot read the last state of a deleted object.
func corruptDeletedError(err error) error {
	return status(http.StatusInternalServerError, metav1.StatusReasonStoreReadError,
		fmt.Errorf("saw a DELETED event, but object data is corrupt - %w", err), 0)
}
