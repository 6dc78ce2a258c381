package certificates

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	authorization "k8s.io/api/authorization/v1"
	capi "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	listers "k8s.io/client-go/listers/certificates/v1"

	"github.com/balsahq/balsa/leader/workqueue"
)

// DefaultLife is how long certificates are valid whose request does not say less; upstream's
// --cluster-signing-duration.
const DefaultLife = 365 * 24 * time.Hour

// ErrRefused is wrapped by errors of Authority.Sign that say that it will never sign such a certificate. The text is shown to
// the user that made the request.
var ErrRefused = errors.New("the signer refuses this")

// Authority signs certificates. Its key is not accessible here.
type Authority struct {
	// Sign returns the certificate, PEM, that says what template says: subject, names, usages and times. Serial number and
	// issuer are the authority's to say; it may cut the time short at its own end.
	Sign func(template *x509.Certificate) (certPEM []byte, err error)
	// Life is the longest a certificate may be valid; DefaultLife unless it is set.
	Life time.Duration
}

// requests is the part that all three controllers share.
type requests struct {
	env  workqueue.Env
	list listers.CertificateSigningRequestLister
	loop *workqueue.Loop[string]
}

// watching returns a loop over all requests there are.
func watching(env workqueue.Env, workers int, reconcile func(context.Context, *requests, *capi.CertificateSigningRequest) error) (*requests, error) {
	informer := env.Informers.Certificates().V1().CertificateSigningRequests()
	r := &requests{env: env, list: informer.Lister()}
	r.loop = workqueue.NewLoop(env, workers, func(ctx context.Context, name string) error {
		csr, err := r.list.Get(name)
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		return reconcile(ctx, r, csr)
	})
	return r, workqueue.Watch(r.loop, informer.Informer(), func(_, now *capi.CertificateSigningRequest) {
		if now != nil {
			r.loop.Add(now.Name)
		}
	})
}

// NewApprover returns the controller that approves nodes' client certificates: requests of users that may create
// certificatesigningrequests/nodeclient, or /selfnodeclient for a node that requests its own certificate.
func NewApprover(env workqueue.Env, workers int) (workqueue.Runner, error) {
	r, err := watching(env, workers, approve)
	return r.loop, err
}

func approve(ctx context.Context, r *requests, csr *capi.CertificateSigningRequest) error {
	ways := approvals(csr)
	for _, way := range ways {
		allowed, err := r.mayCreate(ctx, csr, way.subresource)
		if err != nil {
			return fmt.Errorf("ask whether %s may have what it asks for: %w", csr.Spec.Username, err)
		}
		if !allowed {
			continue
		}
		next := csr.DeepCopy()
		next.Status.Conditions = append(next.Status.Conditions, capi.CertificateSigningRequestCondition{
			Type: capi.CertificateApproved, Status: v1.ConditionTrue, Reason: "AutoApproved", Message: way.message,
		})
		_, err = r.env.Client.CertificatesV1().CertificateSigningRequests().UpdateApproval(ctx, csr.Name, next, metav1.UpdateOptions{})
		return gone(err)
	}
	if len(ways) > 0 { // a role may come later
		r.loop.AddAfter(csr.Name, askAgain(csr, time.Now()))
	}
	return nil
}

// mayCreate asks the authorizer about the user that made the request, with the groups that the user had then.
func (r *requests) mayCreate(ctx context.Context, csr *capi.CertificateSigningRequest, subresource string) (bool, error) {
	review := &authorization.SubjectAccessReview{Spec: authorization.SubjectAccessReviewSpec{
		User: csr.Spec.Username, UID: csr.Spec.UID, Groups: csr.Spec.Groups, Extra: map[string]authorization.ExtraValue{},
		ResourceAttributes: &authorization.ResourceAttributes{
			Group: capi.GroupName, Version: "*", Resource: "certificatesigningrequests", Subresource: subresource, Verb: "create",
		},
	}}
	for key, values := range csr.Spec.Extra {
		review.Spec.Extra[key] = authorization.ExtraValue(values)
	}
	answer, err := r.env.Client.AuthorizationV1().SubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
	if err != nil {
		return false, err
	}
	return answer.Status.Allowed, nil
}

// NewSigner returns the controller that has approved requests to the signers kubernetes.io/… signed.
func NewSigner(env workqueue.Env, workers int, authority Authority) (workqueue.Runner, error) {
	if authority.Sign == nil || authority.Life < 0 {
		return nil, errors.New("certificates: a signer needs Authority.Sign, and a life that is not negative")
	}
	if authority.Life == 0 {
		authority.Life = DefaultLife
	}
	r, err := watching(env, workers, func(ctx context.Context, r *requests, csr *capi.CertificateSigningRequest) error {
		return sign(ctx, r, authority, csr)
	})
	return r.loop, err
}

func sign(ctx context.Context, r *requests, authority Authority, csr *capi.CertificateSigningRequest) error {
	if !toBeSigned(csr) {
		return nil
	}
	template, fault := certificateFor(csr, authority.Life, time.Now())
	var signed []byte
	if fault == nil {
		var err error
		if signed, err = authority.Sign(template); errors.Is(err, ErrRefused) {
			fault = err
		} else if err != nil {
			return fmt.Errorf("sign: %w", err)
		}
	}
	next := csr.DeepCopy()
	if fault != nil {
		next.Status.Conditions = append(next.Status.Conditions, failed(fault, time.Now()))
	} else {
		next.Status.Certificate = signed
	}
	_, err := r.env.Client.CertificatesV1().CertificateSigningRequests().UpdateStatus(ctx, next, metav1.UpdateOptions{})
	return gone(err)
}

// NewCleaner returns the controller that deletes requests that are no longer needed.
func NewCleaner(env workqueue.Env, workers int) (workqueue.Runner, error) {
	r, err := watching(env, workers, clean)
	return r.loop, err
}

func clean(ctx context.Context, r *requests, csr *capi.CertificateSigningRequest) error {
	until, ok := keptUntil(csr)
	if !ok || csr.DeletionTimestamp != nil {
		return nil
	}
	if left := time.Until(until); left > 0 {
		r.loop.AddAfter(csr.Name, left)
		return nil
	}
	// The request may have been approved or denied since the cache was filled.
	only := &metav1.Preconditions{UID: &csr.UID, ResourceVersion: &csr.ResourceVersion}
	return gone(r.env.Client.CertificatesV1().CertificateSigningRequests().Delete(ctx, csr.Name, metav1.DeleteOptions{Preconditions: only}))
}

// gone takes it for success that a request is not there any more.
func gone(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
