package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	pathvalidation "k8s.io/apimachinery/pkg/api/validation/path"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/utils/ptr"

	"github.com/balsahq/balsa/control/kinds"
	"github.com/balsahq/balsa/control/legacy/initializers"
)

// Everything here does nothing where Initializers are not asked for.

// defineInitializers writes the definition of InitializerConfigurations.
func (s *Server) defineInitializers(ctx context.Context) error {
	if !s.cfg.Initializers {
		return nil
	}
	return s.applyDefinition(ctx, initializers.DefinitionName, initializers.Definition)
}

// hideUninitialized makes registries show what is initialized.
func (s *Server) hideUninitialized(of generic.RESTOptionsGetter) generic.RESTOptionsGetter {
	if !s.cfg.Initializers {
		return of
	}
	return initializers.Hide(of, initializers.Config{Patience: s.cfg.InitializerPatience, Remove: s.removeFailed})
}

// uninitializedFilter is what those who read the store itself are not to see.
func (s *Server) uninitializedFilter() func(schema.GroupResource) func(metav1.Object) bool {
	if !s.cfg.Initializers {
		return nil
	}
	return func(r schema.GroupResource) func(metav1.Object) bool {
		if initializers.Exempt(r) {
			return nil
		}
		return initializers.Uninitialized
	}
}

// addInitializers lets initializers do to a waiting pod what its maker could.
func (s *Server) addInitializers(set *kinds.Set) {
	if pods := set.Store("", "pods"); s.cfg.Initializers {
		pods.UpdateStrategy = initializers.PodStrategy(pods.UpdateStrategy, pods.CreateStrategy)
	}
}

// initializerFilter is api for requests that may see what is not initialized. The server of custom resources serves
// InitializerConfigurations in a group whose paths are otherwise the main server's.
func (s *Server) initializerFilter(api http.Handler) http.Handler {
	if !s.cfg.Initializers {
		return api
	}
	root := "/apis/" + initializers.Resource.GroupVersion().String()
	return initializers.Filter(s.waitingFor, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if below, ok := strings.CutPrefix(r.URL.Path, root); ok && (below == "" || below[0] == '/') {
			s.extensions.GenericAPIServer.UnprotectedHandler().ServeHTTP(w, r)
			return
		}
		api.ServeHTTP(w, r)
	}))
}

// initializerVersions are versions of built-in groups that custom resources serve.
func (s *Server) initializerVersions() []schema.GroupVersion {
	if !s.cfg.Initializers {
		return nil
	}
	return []schema.GroupVersion{initializers.Resource.GroupVersion()}
}

// describeInitializers enters their version, as the last of its group, into the aggregated discovery.
func (s *Server) describeInitializers() {
	if s.cfg.Initializers {
		s.discovery.AddGroupVersion(initializers.Resource.Group, initializers.Discovery())
		s.discovery.SetGroupVersionPriority(metav1.GroupVersion(initializers.Resource.GroupVersion()), 1, 1)
	}
}

var errNoObjectName = errors.New("this names no object")

// objectPath returns the path of an object of the resource that a request is about. The server reads the path with its
// own rights. Therefore objectPath refuses a segment that would lead to another path: "." and "..", and any "/" or "%".
func objectPath(info *apirequest.RequestInfo, name string) (string, error) {
	segments := []string{info.APIPrefix, info.APIGroup, info.APIVersion}
	if info.Namespace != "" && info.Resource != "namespaces" {
		segments = append(segments, "namespaces", info.Namespace)
	}
	segments = append(segments, info.Resource, name)
	for _, s := range segments {
		if faults := pathvalidation.IsValidPathSegmentName(s); len(faults) > 0 {
			return "", fmt.Errorf("%w: %q %s", errNoObjectName, s, strings.Join(faults, ", "))
		}
	}
	return path.Join(append([]string{"/"}, segments...)...), nil
}

// waitingFor is what the object that a request names waits for.
func (s *Server) waitingFor(r *http.Request) *initializers.State {
	info, ok := apirequest.RequestInfoFrom(r.Context())
	if !ok || info.Name == "" {
		return nil
	}
	at, err := objectPath(info, info.Name)
	if err != nil {
		return nil // the handler behind the filter answers what is wrong
	}
	text, err := s.client.CoreV1().RESTClient().Get().AbsPath(at).SetHeader("Accept", "application/json").Do(r.Context()).Raw()
	o := struct {
		Metadata metav1.ObjectMeta `json:"metadata"`
	}{}
	if err != nil || json.Unmarshal(text, &o) != nil {
		return nil
	}
	state, err := initializers.Of(&o.Metadata)
	if err != nil {
		return nil
	}
	return state
}

var errNoRequest = errors.New("an object was failed by no request")

// removeFailed deletes the object that the request of ctx wrote an initializer's failure into, as anybody would: so that
// what belongs to it goes with it.
func (s *Server) removeFailed(ctx context.Context, o metav1.Object) error {
	info, ok := apirequest.RequestInfoFrom(ctx)
	if !ok {
		return apierrors.NewInternalError(errNoRequest)
	}
	at, err := objectPath(info, o.GetName())
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	err = s.client.CoreV1().RESTClient().Delete().AbsPath(at).Body(&metav1.DeleteOptions{
		GracePeriodSeconds: ptr.To[int64](0), PropagationPolicy: ptr.To(metav1.DeletePropagationBackground),
		Preconditions: metav1.NewUIDPreconditions(string(o.GetUID())),
	}).Do(ctx).Error()
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // gone, and perhaps another has its name
	}
	return err
}
