"""Keywords that schema libraries write and llguidance does not know, said in those that it follows.

Draft 7's tuples (zod) become prefixItems. Names out of a set (`dict[Literal["a", "b"], int]`) become properties, names that
follow a pattern become patternProperties.
"""

from pinyon.engine.json_keywords import Json, Keywords, joined, refused


def rewritten(schema: Keywords, at: str) -> Keywords:
    """Return an equivalent schema without additionalItems and propertyNames.

    Raises:
        InvalidRequestError: propertyNames asks for what cannot be said otherwise.
    """
    schema = dict(schema)
    _rewrite_tuple(schema)
    if "propertyNames" in schema:
        _rewrite_names(schema, at)
    return schema


def _rewrite_tuple(schema: Keywords) -> None:
    rest = schema.pop("additionalItems", None)  # means something only beside a list of items
    if isinstance(schema.get("items"), list):
        schema["prefixItems"] = schema.pop("items")
        if rest is not None:
            schema["items"] = rest


def _rewrite_names(schema: Keywords, at: str) -> None:
    """Close an object to the names that fit; each fitting one keeps additionalProperties as its schema."""
    rule = schema.pop("propertyNames")
    if isinstance(rule, dict) and rule.get("type") == "string":
        rule = {name: value for name, value in rule.items() if name != "type"}
    if rule in (True, {}):
        return
    if schema.keys() & {"properties", "patternProperties"}:
        raise refused(at, "propertyNames", "works only without `properties` and `patternProperties`")
    value = schema.get("additionalProperties", True)
    match list(rule.items()) if isinstance(rule, dict) else []:
        case [("enum", list(names))]:
            schema["properties"] = _properties([name for name in names if isinstance(name, str)], value, at)
        case [("pattern", str(pattern))]:
            schema["patternProperties"] = {pattern: value}
        case _:
            raise refused(at, "propertyNames", "works with one `enum` or one `pattern`")
    schema["additionalProperties"] = False


def _properties(names: list[str], value: Json, at: str) -> Keywords:
    """Return properties of one schema, which the first one spells out and the others refer to."""
    shared: Json = {"$ref": joined(f"{at}/properties", names[0])} if names else True
    return {name: value if name == names[0] else shared for name in names}
