package initializers

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Annotation is where an object keeps its State. It stands for metadata.initializers.
const Annotation = "balsa.dev/initializers"

// Path is the field path in errors about a State.
var Path = field.NewPath("metadata", "annotations").Key(Annotation)

// State lists the initializers for which an object waits before other clients see it: metav1.Initializers of Kubernetes
// v1.9.
type State struct {
	// Pending are the initializers that have not finished, in their order. Only the first one may work.
	Pending []Name `json:"pending,omitempty"`
	// Result is set by an initializer that has failed. The waiting client gets it as the answer, and the object is
	// deleted.
	Result *metav1.Status `json:"result,omitempty"`
}

// Name is one entry of a pending list.
type Name struct {
	Name string `json:"name"`
}

// Waiting returns the state of a new object.
func Waiting(names []string) *State {
	s := &State{}
	for _, n := range names {
		s.Pending = append(s.Pending, Name{n})
	}
	return s
}

// Empty reports whether the object does not have to wait.
func (s *State) Empty() bool { return s == nil || len(s.Pending) == 0 && s.Result == nil }

// Names returns the pending names as text.
func (s *State) Names() string {
	var names []string
	for _, n := range s.Pending {
		names = append(names, n.Name)
	}
	return strings.Join(names, ", ")
}

// Of returns an object's state, nil for an initialized object. The error is about an invalid annotation, which hides
// nothing.
func Of(o metav1.Object) (*State, error) {
	text, ok := o.GetAnnotations()[Annotation]
	if !ok {
		return nil, nil
	}
	d := json.NewDecoder(bytes.NewReader([]byte(text)))
	d.DisallowUnknownFields()
	s := &State{}
	if err := d.Decode(s); err != nil {
		return nil, fmt.Errorf(`initializers: annotation %s is not {"pending":[{"name":"NAME"}]}: %w`, Annotation, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("initializers: annotation %s has text after its JSON", Annotation)
	}
	return s, nil
}

// Uninitialized reports whether an object still waits and is hidden.
func Uninitialized(o metav1.Object) bool {
	s, err := Of(o)
	return err == nil && !s.Empty()
}

// Set writes an object's state; an empty state removes the annotation.
func Set(o metav1.Object, s *State) error {
	all := map[string]string{}
	for k, v := range o.GetAnnotations() {
		all[k] = v
	}
	delete(all, Annotation)
	if !s.Empty() {
		text, err := json.Marshal(s)
		if err != nil {
			return fmt.Errorf("initializers: %w", err)
		}
		all[Annotation] = string(text)
	}
	if len(all) == 0 {
		all = nil
	}
	o.SetAnnotations(all)
	return nil
}

// ValidateState returns the faults of a state that a client has written.
func ValidateState(s *State) (faults field.ErrorList) {
	if s == nil {
		return nil
	}
	for i, n := range s.Pending {
		faults = append(faults, utilvalidation.IsFullyQualifiedName(Path.Child("pending").Index(i).Child("name"), n.Name)...)
	}
	if s.Result != nil && s.Result.Status != metav1.StatusFailure {
		faults = append(faults, field.Invalid(Path.Child("result", "status"), s.Result.Status, "must be 'Failure'"))
	}
	return faults
}

// ValidateUpdate checks the change of a state: an initialized object never waits again, and a failure stays a failure.
func ValidateUpdate(now, old *State) field.ErrorList {
	switch {
	case now.Empty():
		return nil
	case old.Empty():
		return field.ErrorList{field.Invalid(Path, now.Names(), "field is immutable once initialization has completed")}
	case old.Result != nil && !apiequality.Semantic.DeepEqual(old.Result, now.Result):
		return field.ErrorList{field.Invalid(Path.Child("result"), old.Result.Message, "field is immutable")}
	}
	return ValidateState(now)
}

// failure returns the error for the object's creator when an initializer has refused it.
func (s *State) failure() error {
	told := *s.Result
	told.Status = metav1.StatusFailure
	if told.Code < 400 || told.Code > 599 {
		told.Code = http.StatusForbidden
	}
	if told.Message == "" {
		told.Message = "an initializer has refused the object and given no reason"
	}
	return &apierrors.StatusError{ErrStatus: told}
}
