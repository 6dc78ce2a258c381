package control

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"path"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/utils/ptr"

	"github.com/balsahq/balsa/control/initializers"
	"github.com/balsahq/balsa/control/kinds"
)

// Everything here does nothing where Initializers are not asked for.

// defineInitializers writes the definition of InitializerConfigurations.
func (s *Server) defineInitializers(ctx context.Context) error {
	if !s.cfg.Initializers {
		return nil
	}
	return s.define(ctx, initializers.DefinitionName, initializers.Definition)
}

// hiding makes registries show what is initialized.
func (s *Server) hiding(of generic.RESTOptionsGetter) generic.RESTOptionsGetter {
	if !s.cfg.Initializers {
		return of
	}
	return initializers.Hide(of, initializers.Config{Patience: s.cfg.InitializerPatience, Remove: s.removeFailed})
}

// hidden is what those who read the store itself are not to see.
func (s *Server) hidden() func(schema.GroupResource) func(metav1.Object) bool {
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

// initializable lets initializers do to a waiting pod what its maker could.
func (s *Server) initializable(set *kinds.Set) {
	if pods := set.Store("", "pods"); s.cfg.Initializers {
		pods.UpdateStrategy = initializers.PodStrategy(pods.UpdateStrategy, pods.CreateStrategy)
	}
}

// initializing is api for requests that may see what is not initialized. The server of custom resources serves
// InitializerConfigurations in a group whose paths are otherwise the main server's.
func (s *Server) initializing(api http.Handler) http.Handler {
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

// servedBeside are versions of built-in groups that custom resources serve.
func (s *Server) servedBeside() []schema.GroupVersion {
	if !s.cfg.Initializers {
		return nil
	}
	return []schema.GroupVersion{initializers.Resource.GroupVersion()}
}

// showInitializers enters their version, as the last of its group, into the aggregated discovery.
func (s *Server) showInitializers() {
	if s.cfg.Initializers {
		s.discovery.AddGroupVersion(initializers.Resource.Group, initializers.Discovery())
		s.discovery.SetGroupVersionPriority(metav1.GroupVersion(initializers.Resource.GroupVersion()), 1, 1)
	}
}

// objectPath is that of an object of the resource that a request is about.
func objectPath(info *apirequest.RequestInfo, name string) string {
	parts := []string{"/", info.APIPrefix, info.APIGroup, info.APIVersion}
	if info.Namespace != "" && info.Resource != "namespaces" {
		parts = append(parts, "namespaces", info.Namespace)
	}
	return path.Join(append(parts, info.Resource, name)...)
}

// waitingFor is what the object that a request names waits for.
func (s *Server) waitingFor(r *http.Request) *initializers.State {
	info, ok := apirequest.RequestInfoFrom(r.Context())
	if !ok || info.Name == "" {
		return nil
	}
	text, err := s.client.CoreV1().RESTClient().Get().AbsPath(objectPath(info, info.Name)).SetHeader("Accept", "application/json").Do(r.Context()).Raw()
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
	err := s.client.CoreV1().RESTClient().Delete().AbsPath(objectPath(info, o.GetName())).Body(&metav1.DeleteOptions{
		GracePeriodSeconds: ptr.To[int64](0), PropagationPolicy: ptr.To(metav1.DeletePropagationBackground),
		Preconditions: metav1.NewUIDPreconditions(string(o.GetUID())),
	}).Do(ctx).Error()
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // gone, and perhaps another has its name
	}
	return err
}
