//! The OpenAPI document, made from the table of routes and the wire types.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use tenure_api::cluster::Role;
use tenure_api::error::PROBLEM_JSON;
use tenure_api::ids::Capability;
use tenure_api::paging::Page;
use tenure_api::paths::{IDEMPOTENCY_KEY_HEADER, JSON, YAML};
use tenure_api::runs::{Consistency, RunState};
use tenure_api::{JobName, JobSpec, Problem, Timestamp};
use utoipa::openapi::path::{
    HttpMethod, Operation, OperationBuilder, Parameter, ParameterBuilder, ParameterIn, PathItem,
};
use utoipa::openapi::request_body::{RequestBody, RequestBodyBuilder};
use utoipa::openapi::schema::{ObjectBuilder, Ref, Schema, Type};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{
    ComponentsBuilder, ContentBuilder, InfoBuilder, OpenApiBuilder, PathsBuilder, RefOr, Required,
    ResponseBuilder,
};
use utoipa::{IntoParams, ToSchema};

use super::routes::{Access, Place, ROUTES, Route};

const SECURITY: &str = "token";

/// The schemas that are referred to, by name.
pub(crate) type Schemas = Vec<(String, RefOr<Schema>)>;
/// Adds a type to the schemas and refers to it.
pub(crate) type Shape = fn(&mut Schemas) -> RefOr<Schema>;

/// What a route takes and gives.
pub(crate) struct Doc {
    pub(crate) summary: &'static str,
    pub(crate) query: fn() -> Vec<Parameter>,
    pub(crate) body: Body,
    pub(crate) answer: Shape,
}

/// What a route takes as its body.
pub(crate) enum Body {
    /// Nothing.
    None,
    /// JSON.
    Json(Shape),
    /// JSON, or nothing.
    OptionalJson(Shape),
    /// A job file, JSON or YAML.
    JobFile,
}

/// A route without a query.
pub(crate) const NO_QUERY: fn() -> Vec<Parameter> = Vec::new;

/// The query parameters of a type.
pub(crate) fn parameters<T: IntoParams>() -> Vec<Parameter> {
    T::into_params(|| Some(ParameterIn::Query))
}

/// A type of the wire.
pub(crate) fn shape<T: ToSchema>(schemas: &mut Schemas) -> RefOr<Schema> {
    named::<T>(T::name().into_owned(), schemas)
}

/// A page of a type.
pub(crate) fn page<T: ToSchema>(schemas: &mut Schemas) -> RefOr<Schema> {
    shape::<T>(schemas);
    named::<Page<T>>(format!("PageOf{}", T::name()), schemas)
}

/// Any JSON object.
pub(crate) fn any_object(_: &mut Schemas) -> RefOr<Schema> {
    ObjectBuilder::new().schema_type(Type::Object).into()
}

/// Plain text.
pub(crate) fn text(_: &mut Schemas) -> RefOr<Schema> {
    ObjectBuilder::new().schema_type(Type::String).into()
}

/// The query of the health check.
pub(crate) fn ready_parameter() -> Vec<Parameter> {
    vec![parameter(
        "ready",
        ParameterIn::Query,
        Required::False,
        "Answer 503 unless the node can serve.",
    )]
}

fn named<T: ToSchema>(name: String, schemas: &mut Schemas) -> RefOr<Schema> {
    T::schemas(schemas);
    schemas.push((name.clone(), T::schema()));
    Ref::from_schema_name(name).into()
}

fn parameter(name: &str, place: ParameterIn, required: Required, about: &str) -> Parameter {
    ParameterBuilder::new()
        .name(name)
        .parameter_in(place)
        .required(required)
        .description(Some(about))
        .schema(Some(ObjectBuilder::new().schema_type(Type::String)))
        .build()
}

/// The document as JSON. It is the same for the whole life of the process.
pub(crate) fn document() -> &'static [u8] {
    static DOCUMENT: OnceLock<Vec<u8>> = OnceLock::new();
    DOCUMENT.get_or_init(|| match serde_json::to_vec(&build()) {
        Ok(json) => json,
        Err(error) => {
            tracing::error!(%error, "the OpenAPI document cannot be written");
            b"{}".to_vec()
        }
    })
}

fn build() -> utoipa::openapi::OpenApi {
    let mut schemas = Schemas::new();
    let problem = shape::<Problem>(&mut schemas);
    // What query parameters refer to: they bring no schemas of their own.
    shape::<Consistency>(&mut schemas);
    shape::<RunState>(&mut schemas);
    shape::<JobName>(&mut schemas);
    shape::<Capability>(&mut schemas);
    shape::<Timestamp>(&mut schemas);
    let mut items: BTreeMap<&'static str, PathItem> = BTreeMap::new();
    for route in &ROUTES {
        let operation = operation(route, problem.clone(), &mut schemas);
        let item = PathItem::new(method(route), operation);
        match items.get_mut(route.path) {
            Some(present) => present.merge_operations(item),
            None => {
                items.insert(route.path, item);
            }
        }
    }
    let mut paths = PathsBuilder::new();
    for (path, item) in items {
        paths = paths.path(path, item);
    }
    let bearer = HttpBuilder::new()
        .scheme(HttpAuthScheme::Bearer)
        .description(Some("A token of the cluster."))
        .build();
    let components = ComponentsBuilder::new()
        .schemas_from_iter(schemas)
        .security_scheme(SECURITY, SecurityScheme::Http(bearer))
        .build();
    OpenApiBuilder::new()
        .info(
            InfoBuilder::new()
                .title("Tenure")
                .version(env!("CARGO_PKG_VERSION"))
                .description(Some(
                    "A job scheduler that is its own database. Every error is \
                     application/problem+json with a stable code.",
                ))
                .build(),
        )
        .paths(paths.build())
        .components(Some(components))
        .build()
}

fn method(route: &Route) -> HttpMethod {
    match route.method {
        http::Method::PUT => HttpMethod::Put,
        http::Method::POST => HttpMethod::Post,
        http::Method::DELETE => HttpMethod::Delete,
        _ => HttpMethod::Get,
    }
}

fn operation(route: &Route, problem: RefOr<Schema>, schemas: &mut Schemas) -> Operation {
    let media = match route.path {
        tenure_api::paths::METRICS => "text/plain",
        _ => JSON,
    };
    let answer = ContentBuilder::new()
        .schema(Some((route.doc.answer)(schemas)))
        .build();
    let ok = ResponseBuilder::new()
        .description("Done.")
        .content(media, answer)
        .build();
    let error = ResponseBuilder::new()
        .description("Any error.")
        .content(
            PROBLEM_JSON,
            ContentBuilder::new().schema(Some(problem)).build(),
        )
        .build();
    let mut operation = OperationBuilder::new()
        .operation_id(Some(operation_id(route)))
        .summary(Some(route.doc.summary))
        .description(Some(role_of(route)))
        .parameters(Some(all_parameters(route)))
        .request_body(body_of(route, schemas))
        .response("200", ok)
        .response("default", error);
    if route.access != Access::Open {
        let nothing: [&str; 0] = [];
        operation = operation.security(SecurityRequirement::new(SECURITY, nothing));
    }
    operation.build()
}

/// Method and path in one word: `get_v1_jobs_name`.
fn operation_id(route: &Route) -> String {
    let words = route
        .path
        .split(|c: char| !c.is_ascii_alphanumeric())
        .filter(|word| !word.is_empty());
    let mut id = route.method.as_str().to_ascii_lowercase();
    for word in words {
        id.push('_');
        id.push_str(word);
    }
    id
}

fn role_of(route: &Route) -> String {
    match route.access {
        Access::Open => "Needs no token.".to_owned(),
        Access::Role(Role::Admin) => "Needs the role admin.".to_owned(),
        Access::Role(role) => format!("Needs the role {role}, or one that includes it."),
    }
}

fn all_parameters(route: &Route) -> Vec<Parameter> {
    let mut all: Vec<Parameter> = route
        .path
        .split('/')
        .filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
        .map(|name| parameter(name, ParameterIn::Path, Required::True, "Which one."))
        .collect();
    all.extend((route.doc.query)());
    if route.place == Place::Read && !all.iter().any(|known| known.name == "consistency") {
        let values = Consistency::ALL.iter().map(|value| value.as_str());
        let about = format!(
            "Where the answer comes from: {}.",
            values.collect::<Vec<_>>().join(" or ")
        );
        all.push(parameter(
            "consistency",
            ParameterIn::Query,
            Required::False,
            &about,
        ));
    }
    if matches!(route.doc.body, Body::JobFile) && route.place == Place::Change {
        for (name, about) in [
            (
                "If-Match",
                "The revision that is replaced, in quotes, or *.",
            ),
            ("If-None-Match", "*: only if there is no such job."),
        ] {
            all.push(parameter(name, ParameterIn::Header, Required::False, about));
        }
    }
    if route.changes() && route.access != Access::Role(Role::Executor) {
        all.push(parameter(
            IDEMPOTENCY_KEY_HEADER,
            ParameterIn::Header,
            Required::False,
            "Makes the change safe to repeat. At most 128 characters.",
        ));
    }
    all
}

fn body_of(route: &Route, schemas: &mut Schemas) -> Option<RequestBody> {
    let (shape, required, media): (Shape, Required, &[&str]) = match route.doc.body {
        Body::None => return None,
        Body::Json(shape) => (shape, Required::True, &[JSON]),
        Body::OptionalJson(shape) => (shape, Required::False, &[JSON]),
        Body::JobFile => (shape::<JobSpec>, Required::True, &[JSON, YAML]),
    };
    let schema = shape(schemas);
    let mut body = RequestBodyBuilder::new().required(Some(required));
    for media in media {
        let content = ContentBuilder::new().schema(Some(schema.clone())).build();
        body = body.content(*media, content);
    }
    Some(body.build())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn parsed() -> serde_json::Value {
        serde_json::from_slice(document()).unwrap()
    }

    #[test]
    fn the_document_has_the_routes_of_the_table_and_no_other() {
        let document = parsed();
        let mut documented = BTreeSet::new();
        for (path, item) in document["paths"].as_object().unwrap() {
            for method in item.as_object().unwrap().keys() {
                documented.insert((method.to_uppercase(), path.clone()));
            }
        }
        let table: BTreeSet<_> = ROUTES
            .iter()
            .map(|route| (route.method.to_string(), route.path.to_owned()))
            .collect();
        assert_eq!(documented, table);
        assert_eq!(table.len(), ROUTES.len(), "a route is there twice");
    }

    #[test]
    fn every_reference_leads_somewhere() {
        fn collect(value: &serde_json::Value, found: &mut BTreeSet<String>) {
            match value {
                serde_json::Value::Object(fields) => {
                    for (name, inner) in fields {
                        if let ("$ref", Some(target)) = (name.as_str(), inner.as_str()) {
                            found.insert(target.to_owned());
                        }
                        collect(inner, found);
                    }
                }
                serde_json::Value::Array(items) => {
                    items.iter().for_each(|item| collect(item, found));
                }
                _ => {}
            }
        }
        let document = parsed();
        let mut found = BTreeSet::new();
        collect(&document, &mut found);
        assert!(found.len() > 20, "{found:?}");
        let schemas = document["components"]["schemas"].as_object().unwrap();
        for target in found {
            let name = target.strip_prefix("#/components/schemas/").unwrap();
            assert!(schemas.contains_key(name), "{target}");
        }
    }

    #[test]
    fn operations_are_named_once_and_say_what_they_need() {
        let document = parsed();
        let mut ids = BTreeSet::new();
        for item in document["paths"].as_object().unwrap().values() {
            for operation in item.as_object().unwrap().values() {
                let id = operation["operationId"].as_str().unwrap();
                assert!(ids.insert(id.to_owned()), "{id}");
                let secured = operation.get("security").is_some();
                assert_eq!(secured, id != "get_healthz", "{id}");
            }
        }
    }
}
