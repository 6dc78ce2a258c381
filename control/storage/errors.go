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
	// ErrFenced: the write was made under a leadership (WithFence) that has
	// ended. Nothing was written. As an API error it is a 409 Conflict.
	ErrFenced = errors.New("leadership has ended")
	// ErrExtraCompare: a compare of Extras did not hold; errors.As to
	// *ExtraCompareError tells which. Nothing was written. As an API error it is
	// a 409 Conflict.
	ErrExtraCompare = errors.New("a condition of the write did not hold")
)

// ExtraCompareError says which compare of Extras did not hold.
type ExtraCompareError struct {
	*apierrors.StatusError
	// Index is the place in Extras.Compares, Compare what stands there.
	Index   int
	Compare raftstore.Compare
	// Current is what the compared key or range held at that moment.
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

// fencedError is ErrFenced as the API shows it.
type fencedError struct{ *apierrors.StatusError }

// Is makes errors.Is(err, ErrFenced) true.
func (fencedError) Is(target error) bool { return target == ErrFenced }

// newFencedError names the leadership's key and epoch; current is nil when
// nobody holds it now.
func newFencedError(fence raftstore.Compare, current []*raftstore.KeyValue) error {
	now := "nobody holds it now"
	if len(current) > 0 {
		now = fmt.Sprintf("the epoch is now %d", current[0].CreateRevision)
	}
	message := fmt.Sprintf("%v: leadership %q of epoch %d; %s", ErrFenced, fence.Key, fence.Int, now)
	return fencedError{conflict(message, "LeadershipEnded")}
}

// versionedError is storage.ErrResourceVersionSetOnCreate as the API shows it: 400, because it is the client's fault.
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

// Messages of 410 Gone; clients and tests know these texts.
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

// storeError turns an error of the store into what the API answers. Errors it
// does not know pass through.
func storeError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, raftstore.ErrNoLeader), errors.Is(err, raftstore.ErrClosed):
		return status(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, err, 1)
	case errors.Is(err, raftstore.ErrTooLarge):
		return status(http.StatusRequestEntityTooLarge, metav1.StatusReasonRequestEntityTooLarge, err, 0)
	case errors.Is(err, raftstore.ErrDiskFull), errors.Is(err, raftstore.ErrDiskReadOnly):
		return status(http.StatusInsufficientStorage, "InsufficientStorage", err, 0) // no Retry-After: a person has to act, and should read why at once
	case errors.Is(err, raftstore.ErrDisk), errors.Is(err, raftstore.ErrCorrupt):
		return status(http.StatusInternalServerError, metav1.StatusReasonInternalError, err, 0)
	case errors.Is(err, raftstore.ErrCompacted), errors.Is(err, raftstore.ErrOverrun):
		return apierrors.NewResourceExpired(watchExpired)
	case errors.Is(err, context.Canceled): // nobody reads this; what is no Status would be logged as a fault
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

// storeStatusError keeps the store's error below the API's.
type storeStatusError struct {
	*apierrors.StatusError
	err error
}

// Unwrap makes errors.Is see the store's error; the API error is found first.
func (e *storeStatusError) Unwrap() error { return e.err }

// corruptError: stored bytes could not be transformed back or not be decoded.
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

// unsafeDeletion reports whether corrupt objects may be deleted unread; errors
// then name them, so that the registry offers it.
func unsafeDeletion() bool {
	return utilfeature.DefaultFeatureGate.Enabled(features.AllowUnsafeMalformedObjectDeletion)
}

// readError is how a failure to read one object is answered.
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

// getError is readError for Get, which tells the registry that the object is
// corrupt where unsafe deletion is on.
func getError(err error) error {
	var corrupt *corruptError
	if unsafeDeletion() && errors.As(err, &corrupt) {
		return storage.NewCorruptObjError(corrupt.key, corrupt)
	}
	return readError(err)
}

// WatchStatus is what the event says that ends a watch.
func WatchStatus(err error) *metav1.Status {
	var known apierrors.APIStatus
	if !errors.As(storeError(err), &known) {
		known = apierrors.NewInternalError(err)
	}
	s := known.Status()
	return &s
}

// corruptDeletedError: an object was deleted whose last state cannot be read.
func corruptDeletedError(err error) error {
	return status(http.StatusInternalServerError, metav1.StatusReasonStoreReadError,
		fmt.Errorf("saw a DELETED event, but object data is corrupt - %w", err), 0)
}
